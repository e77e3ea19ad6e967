package taskexecutor

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"time"

	"sandbox.internal/internal/tasks"
	"sandbox.internal/wire/sandboxhttp"
)

// probeTimeout is how long one answer may take.
const probeTimeout = 5 * time.Second

// probe asks for a task's readiness until it is answered. A nil probe asks for nothing.
type probe struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when no request waits any more
	ready  chan struct{} // closed when it was answered
}

func startProbe(r tasks.Readiness) *probe {
	ctx, cancel := context.WithCancel(context.Background())
	p := &probe{cancel: cancel, done: make(chan struct{}), ready: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.ask(ctx, r)
	}()
	return p
}

// answered is closed once when the task is ready; after stop it is nil.
func (p *probe) answered() <-chan struct{} {
	if p == nil {
		return nil
	}
	return p.ready
}

// stop ends the asking. It may be called more than once.
func (p *probe) stop() {
	if p == nil {
		return
	}
	p.cancel()
	<-p.done
	p.ready = nil
}

// ask asks tightly at first, because a sandbox waits for the answer, then less often.
func (p *probe) ask(ctx context.Context, r tasks.Readiness) {
	client := sandboxhttp.NewClient(sandboxhttp.Options{Timeout: probeTimeout})
	path := r.Path
	if path == "" {
		path = "/"
	}
	url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)) + path
	for pause := firstPause; ; pause = min(pause*5/4, longestPause) {
		if request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil); err == nil {
			if response, err := client.Do(request); err == nil {
				response.Body.Close()
				if response.StatusCode == http.StatusOK {
					close(p.ready)
					return
				}
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
