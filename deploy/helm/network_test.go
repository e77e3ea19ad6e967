package helm_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// policy is as much of a NetworkPolicy as the chart uses.
type policy struct {
	Spec struct {
		PodSelector labelSelector
		PolicyTypes []string
		Ingress     []struct {
			From  []peer
			Ports []port
		}
		Egress []struct {
			To    []peer
			Ports []port
		}
	}
}

type peer struct {
	NamespaceSelector, PodSelector *labelSelector
	IPBlock                        *struct {
		CIDR   string
		Except []string
	}
}

type port struct {
	Protocol string
	Port     any
}

type labelSelector struct {
	MatchLabels      map[string]string
	MatchExpressions []struct {
		Key, Operator string
		Values        []string
	}
}

// query is the selector as kubectl takes it.
func (s labelSelector) query() string {
	var parts []string
	for name, value := range s.MatchLabels {
		parts = append(parts, name+"="+value)
	}
	for _, e := range s.MatchExpressions {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", e.Key, strings.ToLower(e.Operator), strings.Join(e.Values, ",")))
	}
	return strings.Join(parts, ",")
}

// selected returns the pods that a peer stands for, as the API server selects them: namespace/name.
func (p peer) selected(t *testing.T) []string {
	t.Helper()
	namespaces := strings.Fields(kubectl(t, "", "get", "namespaces", "-l", p.NamespaceSelector.query(), "-o", "jsonpath={.items[*].metadata.name}"))
	var pods []string
	for _, namespace := range namespaces {
		query := ""
		if p.PodSelector != nil {
			query = p.PodSelector.query()
		}
		for _, name := range strings.Fields(kubectl(t, "", "-n", namespace, "get", "pods", "-l", query, "-o", "jsonpath={.items[*].metadata.name}")) {
			pods = append(pods, namespace+"/"+name)
		}
	}
	slices.Sort(pods)
	return pods
}

// TestNetworkPolicies: the API server takes the policies, and with its own selectors they mean the
// pods that they should. What enforces them is the cluster's network plugin.
func TestNetworkPolicies(t *testing.T) {
	for _, namespace := range []string{"walled", "walled-boxes", "walled-others"} {
		kubectl(t, "", "create", "namespace", namespace)
	}
	helm(t, "install", "sandbox", chart, "--namespace", "walled", "--set", "sandboxes.namespace=walled-boxes")
	helm(t, "install", "sandbox", chart, "--namespace", "walled-others", "--skip-crds")
	pod := func(namespace, name string, labels map[string]string) {
		content, err := json.Marshal(map[string]any{
			"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": namespace, "name": name, "labels": labels},
			"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "x"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		kubectl(t, string(content), "create", "-f", "-")
	}
	for _, namespace := range []string{"walled", "walled-others"} {
		kubectl(t, "", "-n", namespace, "create", "serviceaccount", "default")
		var list struct{ Items []deployment }
		if err := json.Unmarshal([]byte(kubectl(t, "", "-n", namespace, "get", "deployments", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		for _, d := range list.Items {
			pod(namespace, d.Metadata.Name, d.Spec.Template.Metadata.Labels)
		}
		pod(namespace, "prometheus", map[string]string{"app": "prometheus"})
	}
	kubectl(t, "", "-n", "walled-boxes", "create", "serviceaccount", "default")
	pod("walled-boxes", "sandbox", map[string]string{"app.kubernetes.io/managed-by": "sandbox-controller", "sandbox.internal/batch": "x"})
	pod("walled-boxes", "other", map[string]string{"app": "theirs"})
	get := func(namespace, name string) (p policy) {
		t.Helper()
		if err := json.Unmarshal([]byte(kubectl(t, "", "-n", namespace, "get", "networkpolicy", name, "-o", "json")), &p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	in := func(namespace string, s labelSelector) []string {
		return strings.Fields(kubectl(t, "", "-n", namespace, "get", "pods", "-l", s.query(), "-o", "jsonpath={.items[*].metadata.name}"))
	}

	boxes := get("walled-boxes", "sandbox-sandboxes")
	if got := in("walled-boxes", boxes.Spec.PodSelector); !slices.Equal(got, []string{"sandbox"}) || !slices.Equal(boxes.Spec.PolicyTypes, []string{"Ingress", "Egress"}) {
		t.Errorf("the policy is for %q, %q", got, boxes.Spec.PolicyTypes)
	}
	got := map[string]string{}
	for _, rule := range boxes.Spec.Ingress {
		for _, from := range rule.From {
			for _, name := range from.selected(t) {
				got[name] += fmt.Sprint(rule.Ports)
			}
		}
	}
	want := map[string]string{
		"walled/sandbox-server": "[{TCP 44772} {TCP 18080}]", "walled/sandbox-controller": "[{TCP 44772} {TCP 5758} {TCP 18080}]", "walled/sandbox-gateway": "[{TCP 44772}]",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("sandboxes are reached by %v, want %v", got, want)
	}
	for _, address := range []string{
		"10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", // pods, services, nodes
		"169.254.169.254", "fd00:ec2::254", // metadata of clouds
		"fe80::1",
	} {
		if boxes.permits(netip.MustParseAddr(address)) {
			t.Errorf("sandboxes reach %s", address)
		}
	}
	for _, address := range []string{"203.0.113.7", "2001:db8::7"} {
		if !boxes.permits(netip.MustParseAddr(address)) {
			t.Errorf("sandboxes do not reach %s", address)
		}
	}

	controller := get("walled", "sandbox-controller")
	if got := in("walled", controller.Spec.PodSelector); !slices.Equal(got, []string{"sandbox-controller"}) {
		t.Errorf("the controller's policy is for %q", got)
	}
	readers := controller.Spec.Ingress[0].From[0].selected(t)
	if slices.Contains(readers, "walled-boxes/sandbox") || !slices.Contains(readers, "walled-others/prometheus") {
		t.Errorf("the controller's metrics are for %q", readers)
	}
}

// TestNameServers: sandboxes reach those of the cluster, or those that the values name instead.
func TestNameServers(t *testing.T) {
	const ports = `{"ports":[{"port":53,"protocol":"UDP"},{"port":53,"protocol":"TCP"}],"to":`
	for set, want := range map[string]string{
		"networkPolicy.enabled=true":                               `[{"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"kube-system"}}}]`,
		"networkPolicy.dns.to[0].ipBlock.cidr=169.254.20.10/32":    `[{"ipBlock":{"cidr":"169.254.20.10/32"}}]`,
		"networkPolicy.dns.to[0].podSelector.matchLabels.a=server": `[{"podSelector":{"matchLabels":{"a":"server"}}}]`,
	} {
		objects := helm(t, "template", "rendered", chart, "--show-only", "templates/networkpolicy.yaml", "--set", set)
		got := kubectl(t, objects, "create", "--dry-run=client", "-f", "-", "-o", "jsonpath={.spec.egress[0]}")
		if got != ports+want+"}" {
			t.Errorf("%s: the rule is %s", set, got)
		}
	}
}

// permits reports whether a rule without ports leads to an address.
func (p policy) permits(address netip.Addr) bool {
	for _, rule := range p.Spec.Egress {
		for _, to := range rule.To {
			if to.IPBlock == nil || !netip.MustParsePrefix(to.IPBlock.CIDR).Contains(address) {
				continue
			}
			if !slices.ContainsFunc(to.IPBlock.Except, func(cidr string) bool { return netip.MustParsePrefix(cidr).Contains(address) }) {
				return true
			}
		}
	}
	return false
}
