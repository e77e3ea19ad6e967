package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/miekg/dns"

	gen "sandbox.internal/gen/egress"
	"sandbox.internal/openapi/document"
	"sandbox.internal/openapi/serve/servetest"
	"sandbox.internal/test/wait"
	"sandbox.internal/wire/sse"
)

// decided waits for a decision and returns it.
func (s *sandbox) decided(t *testing.T, kind gen.DecisionKind, target string, action gen.NetworkAction) gen.Decision {
	t.Helper()
	var found gen.Decision
	wait.Succeeds(t, fmt.Sprintf("%s %s %s", action, kind, target), func() error {
		var list gen.DecisionList
		if err := s.call(t, http.MethodGet, "/decisions", "", &list); err != nil {
			return err
		}
		at := slices.IndexFunc(list.Items, func(d gen.Decision) bool { return d.Kind == kind && d.Target == target && d.Action == action })
		if at < 0 {
			return fmt.Errorf("not among %+v", list.Items)
		}
		found = list.Items[at]
		return nil
	})
	return found
}

func TestDecisionsAreRecordedAndFollowed(t *testing.T) {
	s := start(t, fewNames)
	s.passes(t, fetch("http://web1.test:$port1/"), "this is web1")
	s.fails(t, "getent hosts web2.test")
	s.fails(t, fetch("http://$web2ip:$port2/"))
	s.fails(t, "getent ahostsv4 rebind.test")

	if d := s.decided(t, "name", "web1.test", "allow"); d.Reason != "rule" || d.Rule == nil || *d.Rule != "web1.test" || d.Count < 1 {
		t.Errorf("web1.test: %+v", d)
	}
	if d := s.decided(t, "name", "web2.test", "deny"); d.Reason != "default" || d.Rule != nil {
		t.Errorf("web2.test: %+v", d)
	}
	if d := s.decided(t, "name", "rebind.test", "deny"); d.Reason != "address" || d.Rule == nil || *d.Rule != s.web2.Addr().String() {
		t.Errorf("rebind.test: %+v", d)
	}
	if d := s.decided(t, "address", s.web1.Addr().String(), "allow"); d.Reason != "name" || !slices.Equal(d.Names, []string{"web1.test"}) ||
		*d.Protocol != "tcp" || *d.Port != int(s.web1.Port()) || d.Count != 1 {
		t.Errorf("the address of web1: %+v", d)
	}
	if d := s.decided(t, "address", s.web2.Addr().String(), "deny"); d.Reason != "rule" || *d.Rule != s.web2.Addr().String() {
		t.Errorf("the address of web2: %+v", d)
	}

	// The stream begins with what is there, and one that is resumed with what has changed since.
	last := s.follow(t, "", func(d gen.Decision) bool { return d.Target == s.web2.Addr().String() })
	s.fails(t, "getent hosts other.example.com")
	first := true
	s.follow(t, last, func(d gen.Decision) bool {
		if first && d.Target == "web1.test" {
			t.Error("the resumed stream began from the start")
		}
		first = false
		return d.Target == "other.example.com" && d.Action == gen.NetworkActionDeny
	})

	response, err := s.send(t.Context(), http.MethodGet, "/decisions", "", http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {"soon"}})
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("a bad Last-Event-ID gave %s", response.Status)
	}

	document, err := document.LoadEgress()
	if err != nil {
		t.Fatal(err)
	}
	servetest.EveryOperationNeedsKey(t, document, "http://"+s.address, "getHealth")
}

// follow reads the stream until an event is the wanted one, and returns that event's id.
func (s *sandbox) follow(t *testing.T, after string, wanted func(gen.Decision) bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience())
	defer cancel()
	header := http.Header{"Accept": {"text/event-stream"}}
	if after != "" {
		header.Set("Last-Event-ID", after)
	}
	response, err := s.send(ctx, http.MethodGet, "/decisions", "", header)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("the stream: %s", response.Status)
	}
	for events := sse.NewReader(response.Body, 1<<20); ; {
		data, err := events.Next()
		if err != nil {
			t.Fatalf("the stream ended without the event: %v", err)
		}
		var d gen.Decision
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatalf("event %q: %v", data, err)
		}
		if wanted(d) {
			return events.ID()
		}
	}
}

func TestADryRunProposesWhatIsNeeded(t *testing.T) {
	s := start(t, `{"defaultAction": "deny", "dryRun": true, "egress": [{"action": "deny", "target": "echo.test"}]}`)
	s.passes(t, fetch("http://alias.test:$port1/"), "this is web1")
	s.passes(t, fetch("http://$web2ip:$port2/"), "this is web2")
	s.passes(t, "getent hosts echo.test", s.echo.Addr().String())
	s.fails(t, "getent hosts gone.test")
	if d := s.decided(t, "name", "alias.test", "deny"); d.DryRun == nil || !*d.DryRun {
		t.Errorf("alias.test: %+v", d)
	}
	if d := s.decided(t, "address", s.web1.Addr().String(), "deny"); d.DryRun == nil || !*d.DryRun || !slices.Equal(d.Names, []string{"alias.test"}) {
		t.Errorf("the address of web1: %+v", d)
	}
	s.decided(t, "address", s.web2.Addr().String(), "deny")

	var proposal gen.Policy
	if err := s.call(t, http.MethodGet, "/decisions/proposal", "", &proposal); err != nil {
		t.Fatal(err)
	}
	want := gen.EgressRules{
		{Action: "deny", Target: "echo.test"}, {Action: "allow", Target: "alias.test"}, {Action: "allow", Target: s.web2.Addr().String()},
	}
	if *proposal.DefaultAction != gen.NetworkActionDeny || *proposal.DryRun || !slices.Equal(*proposal.Egress, want) {
		t.Fatalf("got %+v and the rules %+v, want the rules %+v", proposal, *proposal.Egress, want)
	}
	body, err := json.Marshal(proposal)
	if err != nil {
		t.Fatal(err)
	}
	s.must(t, http.MethodPut, "/policy", string(body))
	s.passes(t, fetch("http://alias.test:$port1/"), "this is web1")
	s.passes(t, fetch("http://$web2ip:$port2/"), "this is web2")
	s.fails(t, "getent hosts echo.test")
	s.fails(t, "getent hosts web2.test")
}

func TestAThousandNamesASecondLoseNoAnswer(t *testing.T) {
	const names, workers = 3000, 64
	const mostMemory = 20 << 10 // KiB, of both processes
	s := start(t, `{"defaultAction": "deny", "egress": [{"action": "allow", "target": "*.test"}]}`)
	results := make(chan error, workers)
	began := time.Now()
	for worker := range workers {
		go func() {
			results <- s.inside(t, func() error {
				client := dns.Client{Timeout: wait.Patience()}
				for n := worker; n < names; n += workers {
					question := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.test.", n), dns.TypeA)
					answer, _, err := client.Exchange(question, "127.0.0.11:53")
					if err != nil {
						return fmt.Errorf("n%d.test: %w", n, err)
					}
					if len(answer.Answer) != 1 {
						return fmt.Errorf("n%d.test: %s", n, answer)
					}
				}
				return nil
			})
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, wait.For(t, "the end of a worker", results))
	}
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	first, daemon := s.processes(t)
	memory := resident(t, first) + resident(t, daemon)
	t.Logf("%d names in %s: %.0f a second; %d KiB resident (process 1 and the egress daemon)", names, took, names/took.Seconds(), memory)
	wait.Succeeds(t, "memory is given back", func() error {
		if memory := resident(t, first) + resident(t, daemon); memory > mostMemory {
			return fmt.Errorf("%d KiB are resident, more than %d", memory, mostMemory)
		}
		return nil
	})
	t.Logf("%d KiB resident after that", resident(t, first)+resident(t, daemon))
}

// resident returns the resident memory of a process in KiB.
func resident(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if match == nil {
		t.Fatalf("no VmRSS of process %d", pid)
	}
	n, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
