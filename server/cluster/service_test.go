package cluster_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"sandbox.internal/runtime/kube/v1alpha1"
	"sandbox.internal/server/api"
	"sandbox.internal/server/app"
	"sandbox.internal/server/config"
	"sandbox.internal/test/wait"
)

// TestServices: two services with nothing in common but the cluster answer as one.
func TestServices(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	var urls []string
	for range 2 {
		cfg := config.Default(func(string) string { return "" })
		cfg.Server.Host, cfg.Server.Port, cfg.Server.DataDir = "127.0.0.1", 0, "/no/such/directory"
		cfg.Runtime = config.Runtime{Type: config.RuntimeKubernetes, ExecdImage: "sandbox/execd:dev"}
		cfg.Kubernetes.KubeconfigPath, cfg.Kubernetes.Namespace = apiServer.Kubeconfig, s.name
		must(t, cfg.Validate())
		service, err := app.New(t.Context(), cfg, api.Version{}, zerolog.New(logOf{t}))
		must(t, err)
		ctx, stop := context.WithCancel(context.Background())
		stopped := make(chan error, 1)
		go func() { stopped <- service.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			must(t, wait.For(t, "the end of the service", stopped))
		})
		urls = append(urls, "http://"+service.Addr())
	}
	client := wait.Client()
	ask := func(method, url, body string, want int) (answer map[string]any) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
		must(t, err)
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		must(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		must(t, err)
		if response.StatusCode != want {
			t.Fatalf("%s %s: %d %s", method, url, response.StatusCode, text)
		}
		if len(text) > 0 {
			must(t, json.Unmarshal(text, &answer))
		}
		return answer
	}
	created := ask(http.MethodPost, urls[0]+"/v1/sandboxes",
		`{"image":{"uri":"registry.example/tool:1"},"timeout":600,"resourceLimits":{"cpu":"1"},"entrypoint":["sleep","1"]}`, http.StatusAccepted)
	id, _ := created["id"].(string)
	at := "/v1/sandboxes/" + id
	t.Run("row lifecycle/configuration/kubernetes.kubeconfig_path: the cluster has the sandbox", func(t *testing.T) { s.batch(t, id) })
	t.Run("row lifecycle/configuration/kubernetes.namespace: the namespace has the sandbox", func(t *testing.T) {
		if got := s.batch(t, id).Namespace; got != s.name {
			t.Errorf("the batch is in the namespace %q, not in %q", got, s.name)
		}
	})
	ask(http.MethodGet, urls[1]+at, "", http.StatusOK)
	s.play(t, id, v1alpha1.PhaseRunning, v1alpha1.ReasonContainerRunning, "execd answers")
	for _, url := range urls {
		endpoint := ask(http.MethodGet, url+at+"/endpoints/8000", "", http.StatusOK)
		if endpoint["endpoint"] != "192.0.2.7:44772/proxy/8000" {
			t.Errorf("the endpoint is %v", endpoint)
		}
	}
	ask(http.MethodDelete, urls[1]+at, "", http.StatusNoContent)
	if got := ask(http.MethodGet, urls[1]+at, "", http.StatusOK)["status"].(map[string]any)["state"]; got != "Stopping" {
		t.Errorf("after the delete it is %v", got)
	}
}
