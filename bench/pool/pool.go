// Package pool has the row of a warm Pool on Kubernetes.
package pool

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
	"sandbox.internal/test/cluster"
)

const (
	poolSize  = 100
	poolNodes = 20

	ourResources = "/apis/sandbox.internal/v1alpha1/namespaces/default/"
	deployments  = "/apis/apps/v1/namespaces/default/deployments"
	pods         = "/api/v1/namespaces/default/pods"
)

// Rows has a claim of a warm Pool's pods.
func Rows() measure.Group {
	return measure.Alone(measure.Row{Name: "pool-100", What: "100 sandboxes of a warm Pool, as one BatchSandbox, until Running, on played nodes and an etcd that does not sync to the disk",
		Floor: "as many puts into etcd as the API server is written to for it",
		Unit:  measure.Milliseconds, Target: measure.Ours(300),
		Peer: "a Deployment scaled to 100 on the same nodes, until ready"},
		measureClaim)
}

// measureClaim measures how soon a batch has its pods from a warm Pool, on nodes that are played:
// what the controller and the API server need for it, without the nodes that would do the same for
// both sides.
func measureClaim(ctx context.Context, run *measure.Run) (result measure.Pair, err error) {
	c, err := cluster.Start(ctx, cluster.Options{Mode: cluster.Fake, Nodes: poolNodes})
	if err != nil {
		return measure.Pair{}, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.Define(ctx, filepath.Join("runtime", "kube", "config", "crd")); err != nil {
		return measure.Pair{}, err
	}
	k, err := openKubernetes(ctx, c)
	if err != nil {
		return measure.Pair{}, err
	}
	defer k.client.CloseIdleConnections()
	health, _, err := rig.TwoAddresses()
	if err != nil {
		return measure.Pair{}, err
	}
	controller, err := rig.Start(ctx, run.Dir, health, "/readyz",
		exec.Command(filepath.Join(run.Bin, "sandbox-controller"),
			"--kubeconfig", c.Kubeconfig, "--health-probe-bind-address", health,
			"--metrics-bind-address", "0"))
	if err != nil {
		return measure.Pair{}, err
	}
	defer controller.Stop()
	if err := k.create(ctx, ourResources+"pools",
		object{"apiVersion": "sandbox.internal/v1alpha1", "kind": "Pool",
			"metadata": object{"name": "warm"}, "spec": object{
				"template": object{"spec": idlePod()},
				"capacitySpec": object{"bufferMin": 0, "bufferMax": poolSize, "poolMin": poolSize,
					"poolMax": poolSize},
			}}); err != nil {
		return measure.Pair{}, err
	}
	put, err := openEtcd(c)
	if err != nil {
		return measure.Pair{}, err
	}
	round, writes := 0, 0
	var peer measure.Sample
	result, err = run.InTurns(ctx, run.Rounds(9, 2), measure.Sides{
		Ours: func(ctx context.Context) (took float64, err error) {
			round++
			took, writes, err = k.fromPool(ctx, fmt.Sprintf("batch-%d", round))
			return took, err
		},
		Floor: func(ctx context.Context) (float64, error) {
			if round%3 == 1 { // the peer is slow, and no floor
				took, err := k.scaled(ctx, fmt.Sprintf("rival-%d", round))
				if err != nil {
					return 0, err
				}
				peer.Add(took)
			}
			return put.times(ctx, writes)
		},
	})
	result.Peer = peer
	return result, err
}

// fromPool measures how long a batch of the pool's size takes until it is Running, counts what is
// written to the API server for it, and waits until the pool is full again.
func (k *kubernetes) fromPool(ctx context.Context,
	name string) (took float64, writes int, err error) {
	err = k.until(ctx, ourResources+"pools", "warm",
		func(o state) bool { return o.Status.Available == poolSize })
	if err != nil {
		return 0, 0, err
	}
	before, err := k.writes(ctx)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	err = k.create(ctx, ourResources+"batchsandboxes",
		object{"apiVersion": "sandbox.internal/v1alpha1", "kind": "BatchSandbox",
			"metadata": object{"name": name},
			"spec":     object{"replicas": poolSize, "poolRef": "warm"}})
	if err != nil {
		return 0, 0, err
	}
	err = k.until(ctx, ourResources+"batchsandboxes", name,
		func(o state) bool { return o.Status.Phase == "Running" && o.Status.Ready == poolSize })
	if err != nil {
		return 0, 0, err
	}
	took = measure.Elapsed(began)
	after, err := k.writes(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := k.call(ctx, http.MethodDelete, ourResources+"batchsandboxes/"+name, nil,
		nil); err != nil {
		return 0, 0, err
	}
	return took, after - before,
		k.until(ctx, ourResources+"pools", "warm",
			func(o state) bool { return o.Status.Allocated == 0 && o.Status.Available == poolSize })
}

// scaled measures how long a Deployment takes to scale from nothing to the pool's size, and waits
// until it is gone.
func (k *kubernetes) scaled(ctx context.Context, name string) (float64, error) {
	labels := object{"app": name}
	err := k.create(ctx, deployments,
		object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": name},
			"spec": object{
				"replicas": 0, "selector": object{"matchLabels": labels},
				"template": object{"metadata": object{"labels": labels}, "spec": idlePod()},
			}})
	if err != nil {
		return 0, err
	}
	if err := k.until(ctx, deployments, name,
		func(o state) bool { return o.Status.ObservedGeneration == o.Metadata.Generation }); err != nil {
		return 0, err
	}
	began := time.Now()
	if err := k.call(ctx, http.MethodPatch, deployments+"/"+name,
		object{"spec": object{"replicas": poolSize}}, nil); err != nil {
		return 0, err
	}
	if err := k.until(ctx, deployments, name,
		func(o state) bool { return o.Status.ReadyReplicas == poolSize }); err != nil {
		return 0, err
	}
	took := measure.Elapsed(began)
	if err := k.call(ctx, http.MethodDelete, deployments+"/"+name, nil, nil); err != nil {
		return 0, err
	}
	return took, k.gone(ctx, "app="+name)
}
