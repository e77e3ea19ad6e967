package pool

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
	"sandbox.internal/test/cluster"
)

// object is a resource as it is sent.
type object = map[string]any

func idlePod() object {
	return object{"terminationGracePeriodSeconds": 0,
		"containers": []object{{"name": "main", "image": rig.BaseImage,
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

// clusterWait bounds each wait for the cluster.
const clusterWait = 2 * time.Minute

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
	ctx, cancel := context.WithTimeout(ctx, clusterWait)
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

// gone returns when no pod has the label.
func (k *kubernetes) gone(ctx context.Context, label string) error {
	for deadline := time.Now().Add(clusterWait); ; {
		var found struct{ Items []state }
		err := k.call(ctx, http.MethodGet, pods+"?labelSelector="+label, nil, &found)
		if err != nil || len(found.Items) == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s there are %d pods with %s", clusterWait, len(found.Items),
				label)
		}
		if err := measure.Pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
