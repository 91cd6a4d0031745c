"""What holds for all tests: no settings of the machine leak in, and no test needs luck or a fast machine."""

import os

from hypothesis import HealthCheck, settings

KEPT = ("PANAL_CACHE", "PANAL_SERVICES", "PANAL_TEST_POSTGRES_URL")

for name in [name for name in os.environ if name.startswith("PANAL_") and name not in KEPT]:
    del os.environ[name]

settings.register_profile(
    "panal", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("panal")
