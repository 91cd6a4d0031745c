"""All admin operations in one hand, for the HTTP API and the command line."""

from panal.management.aliases import AliasOperations
from panal.management.api_keys import ApiKeyOperations
from panal.management.audit import AuditOperations
from panal.management.contributions import ContributionOperations
from panal.management.join_tokens import JoinTokenOperations
from panal.management.limits import LimitOperations
from panal.management.means import Means
from panal.management.nodes import NodeOperations
from panal.management.usage import UsageOperations


class Management:
    """Each operation takes the actor first, and authorises before it does anything."""

    def __init__(self, means: Means) -> None:
        self.join_tokens = JoinTokenOperations(means)
        self.nodes = NodeOperations(means)
        self.api_keys = ApiKeyOperations(means)
        self.limits = LimitOperations(means)
        self.aliases = AliasOperations(means)
        self.usage = UsageOperations(means)
        self.audit = AuditOperations(means)
        self.contributions = ContributionOperations(means)
