"""What a sandbox may reach, and what it reached."""

from __future__ import annotations

from typing import Sequence, TypeAlias

from .._gen import lifecycle
from .._gen.lifecycle import EgressRule, NetworkDecision, NetworkPolicy
from .._options import check_policy
from .http import AsyncHTTP
from .streams import AsyncEvents

Decisions: TypeAlias = list[NetworkDecision]


class AsyncNetwork:
    """The network of a sandbox with an egress sidecar: `sandbox.network`. Without one, every call is a ConflictError."""

    def __init__(self, http: AsyncHTTP, sandbox_id: str) -> None:
        self._http = http
        self._id = sandbox_id

    async def policy(self) -> NetworkPolicy:
        """The policy in force."""
        return await self._http.call(lifecycle.get_network_policy(self._id))

    async def set_policy(self, policy: NetworkPolicy) -> NetworkPolicy:
        """Replaces the whole policy. An empty one is a ValueError; one with the default action "allow" allows everything."""
        check_policy(policy)
        return await self._http.call(lifecycle.replace_network_policy(self._id, policy))

    async def add_rules(self, rules: Sequence[EgressRule]) -> NetworkPolicy:
        """Adds rules before those of the policy; one for a target that is there replaces that rule."""
        return await self._http.call(lifecycle.merge_network_policy_rules(self._id, rules))

    async def allow(self, *targets: str) -> NetworkPolicy:
        """Allows names, wildcard names and ranges of addresses."""
        return await self.add_rules([EgressRule(action="allow", target=target) for target in targets])

    async def deny(self, *targets: str) -> NetworkPolicy:
        """Denies names, wildcard names and ranges of addresses."""
        return await self.add_rules([EgressRule(action="deny", target=target) for target in targets])

    async def delete_rules(self, *targets: str) -> NetworkPolicy:
        """Removes the rules of these targets."""
        return await self._http.call(lifecycle.delete_network_policy_rules(self._id, targets))

    async def decisions(self) -> Decisions:
        """What was allowed and denied since the sidecar started, the newest last."""
        return list((await self._http.call(lifecycle.list_network_decisions(self._id))).items)

    def watch_decisions(self) -> AsyncEvents[NetworkDecision]:
        """What was allowed and denied, and each again whenever its count grows."""
        return AsyncEvents(self._http, "", f"the network decisions of sandbox {self._id}", NetworkDecision,
                           lambda after: lifecycle.list_network_decisions_stream(self._id, last_event_id=after))

    async def proposal(self) -> NetworkPolicy:
        """The smallest allow-list for what was seen. It is not applied."""
        return await self._http.call(lifecycle.propose_network_policy(self._id))
