"""Prefix caches are kept apart by tenant."""

from panal.core.ids import TenantId
from panal.identity.salts import TenantSalts


def test_each_tenant_has_its_own_word_and_each_installation_other_ones() -> None:
    salts, others = TenantSalts(b"a" * 32), TenantSalts(b"b" * 32)
    one, two = TenantId("tnt_1"), TenantId("tnt_2")
    assert salts.of(one) == salts.of(one)
    assert len({salts.of(one), salts.of(two), others.of(one)}) == 3
    assert len(salts.of(one)) == 64
