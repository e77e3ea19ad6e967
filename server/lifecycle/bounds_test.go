package lifecycle_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sandbox.internal/server/lifecycle"
)

func TestBounds(t *testing.T) {
	type limits = lifecycle.ResourceLimits
	full := lifecycle.Bounds{Section: "server.limits", Default: limits{"cpu": "500m"}, Max: limits{"cpu": "2", "memory": "1Gi"}, MaxTimeout: time.Hour}
	for name, test := range map[string]struct {
		bounds  lifecycle.Bounds
		asked   limits
		timeout time.Duration
		want    limits
		words   []string // of an error; none when there is none
	}{
		"none":              {lifecycle.Bounds{}, limits{}, 24 * time.Hour, limits{}, nil},
		"nothing asked for": {full, nil, time.Hour, limits{"cpu": "500m", "memory": "1Gi"}, nil},
		"within":            {full, limits{"cpu": "1500m", "memory": "512Mi", "gpu": "1"}, time.Minute, limits{"cpu": "1500m", "memory": "512Mi", "gpu": "1"}, nil},
		"the most":          {full, limits{"cpu": "2000m", "memory": "1024Mi"}, time.Hour, limits{"cpu": "2000m", "memory": "1024Mi"}, nil},
		"too much cpu":      {full, limits{"cpu": "2001m"}, time.Hour, nil, []string{"resourceLimits.cpu", "server.limits.max_cpu"}},
		"too much memory":   {full, limits{"memory": "1025Mi"}, time.Hour, nil, []string{"resourceLimits.memory", "1Gi", "server.limits.max_memory"}},
		"too long":          {full, nil, time.Hour + time.Second, nil, []string{"timeout", "3600", "server.limits.max_timeout"}},
		"a sum and silence": {lifecycle.Bounds{Section: "s", Total: limits{"memory": "1Gi"}}, nil, time.Hour, nil, []string{"resourceLimits.memory", "required", "s.total_memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := lifecycle.Spec{Resources: test.asked, Timeout: test.timeout}
			err := test.bounds.Apply(&spec)
			if (err != nil) != (test.words != nil) {
				t.Fatalf("got %v", err)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q is not in %q", word, err)
				}
			}
			if err == nil && !equal(spec.Resources, test.want) {
				t.Errorf("got %v, want %v", spec.Resources, test.want)
			}
		})
	}
	now := time.Now()
	if err := full.CheckRenewal(now, now.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if err := full.CheckRenewal(now, now.Add(time.Hour+time.Second)); err == nil || !strings.Contains(err.Error(), "server.limits.max_timeout") {
		t.Errorf("a renewal beyond the bound: %v", err)
	}
	if err := (lifecycle.Bounds{Section: "s", Default: limits{"cpu": "2"}, Max: limits{"cpu": "1"}}).Validate(); err == nil {
		t.Error("a default above the maximum is accepted")
	}
}

func equal(a, b lifecycle.ResourceLimits) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if b[key] != value {
			return false
		}
	}
	return true
}

// TestQuotaOfSums: what the sandboxes of one key have together is bounded, and another key's and
// ended ones do not count.
func TestQuotaOfSums(t *testing.T) {
	bounds := lifecycle.Bounds{Section: "server.limits", Total: lifecycle.ResourceLimits{"memory": "1Gi"}}
	half := lifecycle.Limits{MemoryBytes: 512 << 20}
	there := func(owner string, state lifecycle.State) *lifecycle.Sandbox {
		return &lifecycle.Sandbox{ID: owner + string(state), Owner: owner, Limits: half, Status: lifecycle.Status{State: state}}
	}
	sandboxes := slices.Values([]*lifecycle.Sandbox{there("alice", lifecycle.StateRunning), there("alice", lifecycle.StateFailed), there("bob", lifecycle.StateRunning)})
	var q lifecycle.Quota
	done, err := q.Take(lifecycle.Request{ID: "1", Owner: "alice", Limits: half, Bounds: bounds}, sandboxes)
	if err != nil {
		t.Fatal(err)
	}
	_, err = q.Take(lifecycle.Request{ID: "2", Owner: "alice", Limits: half, Bounds: bounds}, sandboxes)
	if err == nil || !strings.Contains(err.Error(), "server.limits.total_memory") {
		t.Errorf("while another is being created: %v", err)
	}
	done()
	if _, err := q.Take(lifecycle.Request{ID: "2", Owner: "alice", Limits: half, Bounds: bounds}, sandboxes); err != nil {
		t.Error(err)
	}
}
