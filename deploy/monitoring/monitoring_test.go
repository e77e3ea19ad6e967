// Package monitoring_test compares the alerts and the dashboard with the metrics that the programs
// export.
package monitoring_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"go.yaml.in/yaml/v3"

	"sandbox.internal/server/ingress"
	"sandbox.internal/server/lifecycle"
	"sandbox.internal/server/metrics"
)

// metricLabels maps the name of a metric to its labels.
type metricLabels map[string][]string

var (
	described = regexp.MustCompile(`^Desc\{fqName: "(\w+)",.*variableLabels: \{([\w,]*)\}\}$`)
	reason    = regexp.MustCompile("`([A-Z_]+)`")
)

// exported returns the metrics of the service and the ingress, and those that Prometheus adds.
func exported(t *testing.T) metricLabels {
	t.Helper()
	service := metrics.New("v0", "", time.Now)
	service.Sandboxes(func() map[lifecycle.State]int { return nil })
	service.NetworkProblem(func() string { return "" })
	service.Webhooks(func() map[string]time.Duration { return nil })

	routes := filepath.Join(t.TempDir(), "routes.toml")
	if err := os.WriteFile(routes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	settings := ingress.DefaultSettings()
	settings.Listen, settings.Admin = "127.0.0.1:0", ""
	settings.Mode, settings.Routes = ingress.ModeURI, routes
	app, err := ingress.New(settings, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := app.Run(ended); err != nil { // closes the listener
		t.Fatal(err)
	}

	found := metricLabels{"up": nil}
	// Those of the controller that alerts use: its own, and of the libraries that it is made of.
	for name, labels := range map[string][]string{
		"sandbox_pool_missing_pods":     {"namespace", "pool"},
		"leader_election_master_status": {"name"},
		"rest_client_requests_total":    {"code", "method", "host"},
	} {
		found[name] = labels
	}
	for _, gatherer := range []prometheus.Gatherer{service.Gatherer(), app.Gatherer()} {
		descs := make(chan *prometheus.Desc, 1000)
		gatherer.(prometheus.Collector).Describe(descs)
		close(descs)
		for desc := range descs {
			match := described.FindStringSubmatch(desc.String())
			if match == nil {
				t.Fatalf("cannot read %s", desc)
			}
			var names []string
			if match[2] != "" {
				names = strings.Split(match[2], ",")
			}
			// Every metric of a duration of ours is a histogram, but for an age.
			if name := match[1]; strings.HasPrefix(name, "sandbox_") && strings.HasSuffix(name, "_seconds") &&
				name != "sandbox_webhook_oldest_undelivered_seconds" {
				found[name+"_sum"], found[name+"_count"] = names, names
				found[name+"_bucket"] = append(slices.Clone(names), "le")
			} else {
				found[name] = names
			}
		}
	}
	if len(found) < 50 {
		t.Fatalf("only %d metrics are found", len(found))
	}
	return found
}

// expression is what testdata/promql returns for an expression.
type expression struct {
	Error     string
	Selectors []struct {
		Metric   string
		Matchers []matcher
	}
	Labels []string
}

type matcher struct{ Name, Value string }

// parse returns what the expressions refer to, in their order, by Prometheus' own parser.
func parse(t *testing.T, texts []string) []expression {
	t.Helper()
	const directory = "testdata/promql"
	for _, file := range []string{"main.go", "go.mod", "go.sum"} {
		_ = read(t, filepath.Join(directory, file)) // makes it an input of this test
	}
	input, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	var failure bytes.Buffer
	command := exec.CommandContext(t.Context(), "go", "run", "-trimpath", "-buildvcs=false",
		"-gcflags=all=-dwarf=false", ".")
	command.Dir, command.Env = directory, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	command.Stdin, command.Stderr = bytes.NewReader(input), &failure
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, failure.String())
	}
	var expressions []expression
	if err := json.Unmarshal(output, &expressions); err != nil {
		t.Fatal(err)
	}
	if len(expressions) != len(texts) {
		t.Fatalf("%d expressions of %d are answered", len(expressions), len(texts))
	}
	return expressions
}

// check returns what is wrong with each expression: syntax, a metric that no program exports, a
// label that it does not have, a value that a label never has.
func (m metricLabels) check(t *testing.T, texts, reasons []string) [][]string {
	t.Helper()
	problems := make([][]string, len(texts))
	for i, parsed := range parse(t, texts) {
		problems[i] = m.problems(parsed, reasons)
	}
	return problems
}

func (m metricLabels) problems(e expression, reasons []string) (problems []string) {
	if e.Error != "" {
		return []string{e.Error}
	}
	known := []string{"job", "instance"}
	for _, selector := range e.Selectors {
		own, exists := m[selector.Metric]
		if !exists {
			problems = append(problems, "no program exports "+selector.Metric)
			continue
		}
		known = append(known, own...)
		for _, matcher := range selector.Matchers {
			problems = append(problems, checkMatcher(selector.Metric, own, reasons, matcher)...)
		}
	}
	for _, name := range e.Labels {
		if !slices.Contains(known, name) {
			problems = append(problems, "no metric of it has the label "+name)
		}
	}
	return problems
}

func checkMatcher(metric string, own, reasons []string, matcher matcher) []string {
	if slices.Contains([]string{"__name__", "job", "instance"}, matcher.Name) {
		return nil
	}
	if !slices.Contains(own, matcher.Name) {
		return []string{metric + " has no label " + matcher.Name}
	}
	var values []string
	switch {
	case matcher.Name == "state":
		for _, state := range lifecycle.States() {
			values = append(values, string(state))
		}
	case matcher.Name == "stage":
		for _, stage := range lifecycle.Stages() {
			values = append(values, string(stage))
		}
	case matcher.Name == "reason" && metric == "sandbox_state_changes_total":
		values = reasons
	default:
		return nil
	}
	var problems []string
	for value := range strings.SplitSeq(matcher.Value, "|") {
		if !slices.Contains(values, value) {
			problems = append(problems, metric+": "+matcher.Name+" is never "+value)
		}
	}
	return problems
}

// documentedReasons returns the reasons of states: docs/runbook.md has every one, which a test of
// server/app checks.
func documentedReasons(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, match := range reason.FindAllStringSubmatch(string(read(t, "../../docs/runbook.md")), -1) {
		found = append(found, match[1])
	}
	return found
}

// TestAlerts checks the structure of the rules, which have no keys but those of Prometheus, and
// their expressions.
func TestAlerts(t *testing.T) {
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert       string
				Expr        string
				For         string
				Labels      map[string]string
				Annotations map[string]string
			}
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(read(t, "alerts.yaml")))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil {
		t.Fatal(err)
	}
	var texts, names []string
	seen := map[string]bool{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || seen[rule.Alert] {
				t.Errorf("%s: the name %q is empty or there twice", group.Name, rule.Alert)
			}
			seen[rule.Alert] = true
			texts, names = append(texts, rule.Expr), append(names, rule.Alert)
			if rule.For != "" {
				if _, err := time.ParseDuration(rule.For); err != nil {
					t.Errorf("%s: for: %v", rule.Alert, err)
				}
			}
			if !slices.Contains([]string{"warning", "critical"}, rule.Labels["severity"]) ||
				rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s needs severity, summary and description", rule.Alert)
			}
			for name, text := range rule.Annotations {
				if _, err := template.New(name).Parse("{{ $labels := . }}" + text); err != nil {
					t.Errorf("%s: %v", rule.Alert, err)
				}
			}
		}
	}
	for i, problems := range exported(t).check(t, texts, documentedReasons(t)) {
		for _, problem := range problems {
			t.Errorf("%s: %s", names[i], problem)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts are found", len(seen))
	}
}

// TestDashboard checks the expressions of the panels, and that no panel covers another.
func TestDashboard(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ RefID, Expr string }
		}
	}
	if err := json.Unmarshal(read(t, "dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	var texts, names []string
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] {
			t.Errorf("%s: the id %d is there twice", panel.Title, panel.ID)
		}
		ids[panel.ID] = true
		at := panel.GridPos
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken || x >= 24 {
					t.Fatalf("%s is outside, or covers %q", panel.Title, other)
				}
				cells[[2]int{x, y}] = panel.Title
			}
		}
		if (len(panel.Targets) == 0) != (panel.Type == "row") {
			t.Errorf("%s, of type %s, has %d queries", panel.Title, panel.Type, len(panel.Targets))
		}
		for _, target := range panel.Targets {
			texts = append(texts, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			names = append(names, panel.Title+", "+target.RefID)
		}
	}
	for i, problems := range exported(t).check(t, texts, documentedReasons(t)) {
		for _, problem := range problems {
			t.Errorf("%s: %s", names[i], problem)
		}
	}
	if len(texts) < 20 {
		t.Errorf("only %d queries are found", len(texts))
	}
}

// TestCheck: the check finds each kind of mistake.
func TestCheck(t *testing.T) {
	cases := []struct{ expression, want string }{
		{`sandbox_sandboxes{state="Running"}`, ""},
		{`sandbox_sandboxes{`, "parse error"},
		{`sandbox_nothing > 1`, "no program exports sandbox_nothing"},
		{`rate(sandbox_provision_duration_seconds[5m])`, "no program exports sandbox_prov"},
		{`sandbox_sandboxes{phase="Running"}`, "sandbox_sandboxes has no label phase"},
		{`sandbox_sandboxes{state="running"}`, "state is never running"},
		{`sum by (call) (sandbox_sandboxes)`, "has the label call"},
		{`sandbox_state_changes_total{reason=~"EXPIRED|EXPIERD"}`, "reason is never EXPIERD"},
	}
	var texts []string
	for _, test := range cases {
		texts = append(texts, test.expression)
	}
	for i, problems := range exported(t).check(t, texts, []string{"EXPIRED"}) {
		got, want := strings.Join(problems, "\n"), cases[i].want
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", texts[i], got, want)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
