import assert from "node:assert/strict";
import { test } from "node:test";

import type { NetworkDecision } from "@sandbox.internal/sdk";

import { CuttingProxy, busybox, newClient } from "../support.js";

test("policy, rules, decisions and a proposal", async () => {
  await using sandbox = await newClient().create(busybox, { networkPolicy: { defaultAction: "deny" } });
  const { network } = sandbox;
  assert.equal((await network.policy()).defaultAction, "deny");
  const rule = { action: "allow", target: "192.0.2.0/24" } as const;
  assert.deepEqual((await network.addRules([rule])).egress, [rule]);
  assert.deepEqual((await network.deleteRules([rule.target])).egress ?? [], []);
  await network.replace({ defaultAction: "deny", dryRun: true });

  await using proxy = await CuttingProxy.start();
  const watcher = await newClient({ url: proxy.url }).connect(sandbox.id);
  const seen: NetworkDecision[] = [];
  const watched = (async () => {
    for await (const decision of watcher.network.watchDecisions()) {
      seen.push(decision);
      if (decision.port === 9001) proxy.cutAll();
      if (decision.port === 9002) return;
    }
  })();
  // 192.0.2.0/24 is for documentation: nothing answers there.
  await sandbox.commands.run("nc -w 1 192.0.2.1 9001", { timeout: 3_000 });
  await sandbox.commands.run("nc -w 1 192.0.2.1 9002", { timeout: 3_000 });
  await watched;
  assert.ok(proxy.cuts > 0);
  const [first] = seen;
  assert.deepEqual([first?.kind, first?.target, first?.protocol, first?.dryRun], ["address", "192.0.2.1", "tcp", true]);
  assert.deepEqual((await network.decisions()).map(({ port }) => port).toSorted(), [9001, 9002]);
  const proposal = await network.proposal();
  assert.equal(proposal.defaultAction, "deny");
  assert.ok(proposal.egress?.some(({ action, target }) => action === "allow" && target.startsWith("192.0.2.1")));
});
