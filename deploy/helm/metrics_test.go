package helm_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scraped are values with which a Prometheus finds everything.
var scraped = []string{
	"--set", "metrics.service.enabled=true", "--set", "metrics.service.annotations.a=b",
	"--set", "metrics.podMonitor.enabled=true", "--set", "metrics.podMonitor.labels.release=prometheus",
	"--set", "metrics.podMonitor.interval=1m30s", "--set", "metrics.podMonitor.key.secret=prometheus",
}

// definePodMonitors has the API server serve the PodMonitors of the Prometheus Operator.
func definePodMonitors(t *testing.T) {
	t.Helper()
	const directory = "testdata/definitions"
	for _, file := range []string{"go.mod", "go.sum"} {
		if _, err := os.ReadFile(filepath.Join(directory, file)); err != nil { // makes it an input of this test
			t.Fatal(err)
		}
	}
	command := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus-operator/prometheus-operator")
	command.Dir, command.Env = directory, append(os.Environ(), "GOWORK=off")
	output, err := command.Output()
	var module struct{ Dir, Error string }
	if decoded := json.Unmarshal(output, &module); err != nil || decoded != nil || module.Dir == "" {
		t.Fatalf("%v: %s", err, output)
	}
	if err := shared.Define(t.Context(), filepath.Join(module.Dir, "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml")); err != nil {
		t.Fatal(err)
	}
}

// monitored is what the tests look at of Services, PodMonitors and Deployments.
type monitored struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		ClusterIP string
		Ports     []struct {
			Name, TargetPort string
			Port             int
		}
		Selector            json.RawMessage // of labels; for a PodMonitor and a Deployment below matchLabels
		PodMetricsEndpoints []struct {
			Port, Interval string
			Authorization  struct {
				Credentials struct{ Name, Key string }
			}
			Relabelings []struct{ TargetLabel, Replacement string }
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     struct {
				Containers []struct {
					Ports []struct {
						Name          string
						ContainerPort int
					}
				}
			}
		}
	}
}

// TestMetrics: Services and PodMonitors select the pods of one Deployment each, at a port that the
// pods have, under the jobs that the alerts name. A key is sent to the service alone, which demands
// one.
func TestMetrics(t *testing.T) {
	definePodMonitors(t)
	plain := helm(t, "template", "sandbox", chart)
	if strings.Contains(plain, "kind: PodMonitor") || strings.Contains(plain, "-metrics\n") {
		t.Error("they are there without being asked for")
	}
	objects := helm(t, append([]string{"template", "sandbox", chart, "--namespace", "default"}, scraped...)...)
	var list struct{ Items []monitored }
	for _, text := range strings.Split(objects, "\n---\n") { // kubectl prints no list for client-side dry runs
		if !strings.Contains(text, "\nkind: Service\n") && !strings.Contains(text, "\nkind: PodMonitor\n") && !strings.Contains(text, "\nkind: Deployment\n") {
			continue
		}
		var object monitored
		if err := json.Unmarshal([]byte(kubectl(t, text, "create", "--dry-run=client", "-o", "json", "-f", "-")), &object); err != nil {
			t.Fatal(err)
		}
		list.Items = append(list.Items, object)
	}
	ports := map[string]map[string]int{} // by the component's name, of its pods
	for _, object := range list.Items {
		if object.Kind == "Deployment" {
			component := object.Spec.Template.Metadata.Labels["app.kubernetes.io/name"]
			ports[component] = map[string]int{}
			for _, port := range object.Spec.Template.Spec.Containers[0].Ports {
				ports[component][port.Name] = port.ContainerPort
			}
		}
	}
	alerts, err := os.ReadFile("../monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	services, monitors := 0, 0
	for _, object := range list.Items {
		var selector struct {
			Name        string `json:"app.kubernetes.io/name"`
			MatchLabels struct {
				Name string `json:"app.kubernetes.io/name"`
			}
		}
		if err := json.Unmarshal(object.Spec.Selector, &selector); err != nil {
			t.Fatal(err)
		}
		switch {
		case object.Kind == "Service" && strings.HasSuffix(object.Metadata.Name, "-metrics"):
			services++
			port := object.Spec.Ports[0]
			if object.Spec.ClusterIP != "None" || port.Port == 0 || ports[selector.Name][port.TargetPort] != port.Port {
				t.Errorf("%+v fits none of the ports %v", object, ports)
			}
		case object.Kind == "PodMonitor":
			monitors++
			endpoint := object.Spec.PodMetricsEndpoints[0]
			if ports[selector.MatchLabels.Name][endpoint.Port] == 0 || endpoint.Interval != "1m30s" || object.Metadata.Labels["release"] != "prometheus" {
				t.Errorf("%+v fits none of the ports %v", object, ports)
			}
			job := endpoint.Relabelings[0]
			if job.TargetLabel != "job" || selector.MatchLabels.Name != "sandbox-controller" && !strings.Contains(string(alerts), `job="`+job.Replacement+`"`) {
				t.Errorf("the alerts do not name the job %+v of %s", job, object.Metadata.Name)
			}
			key := endpoint.Authorization.Credentials
			if isServer := selector.MatchLabels.Name == "sandbox-server"; isServer != (key.Name == "prometheus" && key.Key == "api-key") || !isServer && key.Name != "" {
				t.Errorf("%s sends the key %+v", object.Metadata.Name, key)
			}
		}
	}
	if services != 3 || monitors != 3 {
		t.Errorf("%d Services and %d PodMonitors, want 3 and 3", services, monitors)
	}
}
