package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"sandbox.internal/test/cluster"
)

const (
	poolSize  = 100
	poolNodes = 20
	// poolWait bounds each wait for the cluster.
	poolWait = 2 * time.Minute

	ourResources = "/apis/sandbox.internal/v1alpha1/namespaces/default/"
	deployments  = "/apis/apps/v1/namespaces/default/deployments"
	pods         = "/api/v1/namespaces/default/pods"
)

// measurePool measures how soon a batch has its pods from a warm Pool, on nodes that are played:
// what the controller and the API server need for it, without the nodes that would do the same for
// both sides.
func (b *bench) measurePool(ctx context.Context) (err error) {
	c, err := cluster.Start(ctx, cluster.Options{Mode: cluster.Fake, Nodes: poolNodes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.Define(ctx, filepath.Join("runtime", "kube", "config", "crd")); err != nil {
		return err
	}
	k, err := openKubernetes(ctx, c)
	if err != nil {
		return err
	}
	defer k.client.CloseIdleConnections()
	health, _, err := twoAddresses()
	if err != nil {
		return err
	}
	controller, err := start(ctx, b.dir, health, "/readyz",
		exec.Command(filepath.Join(b.bin, "sandbox-controller"),
			"--kubeconfig", c.Kubeconfig, "--health-probe-bind-address", health,
			"--metrics-bind-address", "0"))
	if err != nil {
		return err
	}
	defer controller.stop()
	if err := k.create(ctx, ourResources+"pools",
		object{"apiVersion": "sandbox.internal/v1alpha1", "kind": "Pool",
			"metadata": object{"name": "warm"}, "spec": object{
				"template": object{"spec": idlePod()},
				"capacitySpec": object{"bufferMin": 0, "bufferMax": poolSize, "poolMin": poolSize,
					"poolMax": poolSize},
			}}); err != nil {
		return err
	}
	put, err := openEtcd(c)
	if err != nil {
		return err
	}
	round, writes := 0, 0
	var peer sample
	err = b.inTurns(ctx, rowPool, b.rounds(9, 2), sides{
		ours: func(ctx context.Context) (took float64, err error) {
			round++
			took, writes, err = k.fromPool(ctx, fmt.Sprintf("batch-%d", round))
			return took, err
		},
		floor: func(ctx context.Context) (float64, error) {
			if round%3 == 1 { // the peer is slow, and no floor
				took, err := k.scaled(ctx, fmt.Sprintf("rival-%d", round))
				if err != nil {
					return 0, err
				}
				peer.add(took)
			}
			return put.times(ctx, writes)
		},
	})
	result := b.results[rowPool]
	result.peer = peer
	b.results[rowPool] = result
	return err
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
	took = elapsed(began)
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
	took := elapsed(began)
	if err := k.call(ctx, http.MethodDelete, deployments+"/"+name, nil, nil); err != nil {
		return 0, err
	}
	return took, k.gone(ctx, "app="+name)
}

// gone returns when no pod has the label.
func (k *kubernetes) gone(ctx context.Context, label string) error {
	for deadline := time.Now().Add(poolWait); ; {
		var found struct{ Items []state }
		err := k.call(ctx, http.MethodGet, pods+"?labelSelector="+label, nil, &found)
		if err != nil || len(found.Items) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s there are %d pods with %s", poolWait, len(found.Items),
				label)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// object is a resource as it is sent.
type object = map[string]any

func idlePod() object {
	return object{"terminationGracePeriodSeconds": 0,
		"containers": []object{{"name": "main", "image": baseImage,
			"command": []string{"sleep", "inf"}}}}
}

// state is what the bench reads of a resource.
type state struct {
	Metadata struct{ Generation int64 }
	Status   struct {
		Phase                                      string
		Ready, Available, Allocated, ReadyReplicas int
		ObservedGeneration                         int64
	}
}

// kubernetes is the API of a cluster, spoken plainly.
type kubernetes struct {
	url    string
	client *http.Client
}

// openKubernetes reads from the cluster's configuration how an administrator reaches it.
func openKubernetes(ctx context.Context, c *cluster.Cluster) (*kubernetes, error) {
	said, err := c.Command(ctx, "kubectl", "--kubeconfig", c.Kubeconfig, "config", "view", "--raw",
		"--output", "json").Output()
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct {
				Server    string
				Authority string `json:"certificate-authority"`
			}
		}
		Users []struct {
			User struct {
				Certificate string `json:"client-certificate"`
				Key         string `json:"client-key"`
			}
		}
	}
	if err := json.Unmarshal(said, &config); err != nil {
		return nil, err
	}
	if len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("%s: want one cluster and one user", c.Kubeconfig)
	}
	authority, err := os.ReadFile(config.Clusters[0].Cluster.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	user, err := tls.LoadX509KeyPair(config.Users[0].User.Certificate, config.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	return &kubernetes{config.Clusters[0].Cluster.Server, &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{user}},
		ForceAttemptHTTP2: true,
	}}}, nil
}

func (k *kubernetes) create(ctx context.Context, path string, in object) error {
	return k.call(ctx, http.MethodPost, path, in, nil)
}

func (k *kubernetes) call(ctx context.Context, method, path string, in, out any) error {
	response, err := k.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	return json.NewDecoder(response.Body).Decode(out)
}

func (k *kubernetes) send(ctx context.Context, method, path string,
	in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, k.url+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := k.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		defer response.Body.Close()
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status,
			strings.TrimSpace(string(said)))
	}
	return response, nil
}

// until watches a resource until the condition holds.
func (k *kubernetes) until(ctx context.Context, path, name string,
	condition func(state) bool) error {
	ctx, cancel := context.WithTimeout(ctx, poolWait)
	defer cancel()
	response, err := k.send(ctx, http.MethodGet,
		path+"?watch=true&fieldSelector=metadata.name="+name, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for events := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object state
		}
		if err := events.Decode(&event); err != nil {
			return fmt.Errorf("watch of %s/%s: %w", path, name, err)
		}
		if event.Type != "DELETED" && condition(event.Object) {
			return nil
		}
	}
}
