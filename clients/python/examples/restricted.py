"""Lets a sandbox reach one name only, and shows what it tried. The service must have an egress sidecar.

    python restricted.py IMAGE
"""

import sys

from sandboxes import Client, EgressRule, NetworkPolicy

policy = NetworkPolicy(default_action="deny", egress=[EgressRule(action="allow", target="pypi.org")])

with Client() as client, client.create(sys.argv[1], timeout=300, network_policy=policy) as sandbox:
    sandbox.commands.run("nc -w 1 192.0.2.1 80 </dev/null")
    with sandbox.network.watch_decisions() as decisions:
        for decision in decisions:
            print(decision.action, decision.target)
            break
