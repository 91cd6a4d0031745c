"""What bench engines put into their tokens, so that a load generator can compute each token's delay.

A token's text is ``@SENT`` and a blank; the first one of an answer is ``^ASKED@SENT`` and a blank. Both
are seconds of the machine's monotonic clock, which all processes of one machine share.
"""

import re
import time

SENT = re.compile(rb"@(\d{10}\.\d{6})")
ASKED = re.compile(rb"\^(\d{10}\.\d{6})@(\d{10}\.\d{6})")
WIDTH = 17
"""Characters of one time."""

PACE_FIELD = "bench_pace_ms"
"""Field of a request: milliseconds between tokens; 0 is as fast as possible."""

now_s = time.monotonic


def stamp(seconds: float) -> bytes:
    return b"%017.6f" % seconds
