package manager_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"sandbox.internal/runtime/kube/manager"
	"sandbox.internal/test/wait"
)

// TestLeaderIsReplacedSoon: a leader that ends without giving its lease back is replaced within 10
// s.
func TestLeaderIsReplacedSoon(t *testing.T) {
	const namespace = "replaced"
	kubectl(t, "", "create", "namespace", namespace)
	holder := func() string {
		return kubectl(t, "", "-n", namespace, "get", "lease", "--ignore-not-found", "-o",
			"jsonpath={.items[*].spec.holderIdentity}")
	}
	first := options(t, namespace)
	first.LeaderElection = true
	dead, kill := context.WithCancelCause(t.Context())
	first.Config = rest.CopyConfig(first.Config)
	// Killed: nothing that it sends arrives any more.
	first.Config.Wrap(cutOff(dead))
	leader, err := manager.New(first)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- leader.Run(ctx) }()
	eventually(t, func() error {
		if holder() == "" {
			return errors.New("no manager leads")
		}
		return nil
	})
	before := holder()
	second := options(t, namespace)
	second.LeaderElection = true
	start(t, second)
	apply(t, namespace, "early")
	kill(errors.New("killed"))
	killed := time.Now()
	eventually(t, func() error {
		if now := holder(); now == before || now == "" {
			return fmt.Errorf("after %v %q leads", time.Since(killed), now)
		}
		return nil
	})
	text := kubectl(t, "", "-n", namespace, "get", "lease", "-o", "jsonpath={.items[*].spec.acquireTime}")
	acquired, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	if took := acquired.Sub(killed); took > 10*time.Second {
		t.Errorf("a leader is replaced after %v", took)
	}
	cancel()
	wait.For(t, "the end of the watch", ended)
}

// cutOff makes requests fail once the context has ended.
func cutOff(dead context.Context) func(http.RoundTripper) http.RoundTripper {
	return func(inner http.RoundTripper) http.RoundTripper { return &unplugged{inner, dead} }
}

type unplugged struct {
	http.RoundTripper
	dead context.Context
}

func (u *unplugged) RoundTrip(r *http.Request) (*http.Response, error) {
	if u.dead.Err() != nil {
		return nil, context.Cause(u.dead)
	}
	return u.RoundTripper.RoundTrip(r)
}

func (u *unplugged) WrappedRoundTripper() http.RoundTripper { return u.RoundTripper }
