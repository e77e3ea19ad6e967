package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// progressPause is how often progress is reported at most, and heartbeat how often when there
	// is none, so that what lies between does not close the connection as idle.
	progressPause = time.Second
	heartbeat     = 10 * time.Second
	// maxProgress bounds the text of a report, in bytes.
	maxProgress = 200
)

// progress reports how a call goes on, to clients that ask for it.
type progress struct {
	news chan struct{}
	over chan struct{}
	done chan struct{}

	mu      sync.Mutex
	message string
}

// newProgress begins to report for a call; stop ends it.
func newProgress(ctx context.Context, request call) *progress {
	p := &progress{
		news: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
	}
	token := request.Params.GetProgressToken()
	if token == nil {
		close(p.done)
		return p
	}
	go func() {
		defer close(p.done)
		beat := time.NewTicker(heartbeat)
		defer beat.Stop()
		for step := 1; ; step++ {
			select {
			case <-p.news:
			case <-beat.C:
			case <-p.over:
				return
			case <-ctx.Done():
				return
			}
			beat.Reset(heartbeat)
			p.mu.Lock()
			message := p.message
			p.mu.Unlock()
			// A client that is gone ends the call by itself.
			_ = request.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
				ProgressToken: token, Progress: float64(step), Message: message,
			})
			select {
			case <-time.After(progressPause):
			case <-p.over:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return p
}

// say reports a message.
func (p *progress) say(message string) {
	if len(message) > maxProgress {
		message = strings.ToValidUTF8(message[:maxProgress], "")
	}
	p.mu.Lock()
	p.message = message
	p.mu.Unlock()
	select {
	case p.news <- struct{}{}:
	default: // there is a report to come
	}
}

// output reports the last line of an output.
func (p *progress) output(data []byte) {
	line := strings.TrimSpace(string(data[max(0, len(data)-maxProgress):]))
	if end := strings.LastIndexByte(line, '\n'); end >= 0 {
		line = line[end+1:]
	}
	if line != "" {
		p.say(strings.ToValidUTF8(line, "?"))
	}
}

// stop ends the reports.
func (p *progress) stop() {
	close(p.over)
	<-p.done
}
