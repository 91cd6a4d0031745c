"""Every admin operation once: authorise, do, audit."""

from panal.management.bootstrap import FirstKeys, bootstrap
from panal.management.management import Management
from panal.management.means import Means, Page

__all__ = ["FirstKeys", "Management", "Means", "Page", "bootstrap"]
