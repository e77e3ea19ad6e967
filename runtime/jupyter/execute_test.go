package jupyter

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/runtime/kernel"
)

// TestALongMessageIsNotSilence: what takes long to arrive, or to be decoded, is waited for; what
// does not come is lost.
func TestALongMessageIsNotSilence(t *testing.T) {
	arrive := func(l *line) {
		bytes := l.arrivals.count(strings.NewReader(strings.Repeat("x", 180)))
		for range 180 {
			_, _ = bytes.Read(make([]byte, 1))
			time.Sleep(time.Second)
		}
	}
	wait := func(*line) { time.Sleep(10 * time.Minute) }
	for name, test := range map[string]struct {
		meanwhile func(*line)
		lost      bool
	}{
		"arriving": {arrive, false},
		"decoding": {func(l *line) {
			defer l.arrivals.arrived()()
			wait(l)
		}, false},
		"silent":          {wait, true},
		"arrives in part": {func(l *line) { arrive(l); wait(l) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &line{session: "s", gone: make(chan struct{})}
				l.send = func(_ context.Context, request message) error {
					go func() {
						reply := said(request, typeExecuteReply, `{"status":"ok"}`)
						reply.Channel = channelShell
						l.route(reply)
						test.meanwhile(l)
						idle := said(request, typeStatus, `{"execution_state":"idle"}`)
						idle.Channel = channelIOPub
						l.route(idle)
					}()
					return nil
				}
				defer time.Sleep(time.Hour) // until the goroutine has ended
				reply, err := l.Execute(t.Context(), "", func(kernel.Output) {})
				if err != nil || (reply.Error != nil) != test.lost {
					t.Errorf("%+v, %v", reply.Error, err)
				}
				// A later interrupt or loss must not be taken for this cell's.
				if q := l.current(); q != nil {
					t.Error("the cell is still taken for the one that runs")
				}
			})
		})
	}
}

// TestStragglers: what Deno prints after a cell's end is waited for, for a while, and a loss in it
// is one of the cell.
func TestStragglers(t *testing.T) {
	for name, test := range map[string]struct {
		end   func(*line, message) // after the cell's end
		after func(*line, message) // after the reply to the question for a mark
		want  string
	}{
		"prints for ever": {func(*line, message) {}, func(l *line, question message) {
			for range 100 {
				l.route(said(question, typeStream, `{"name":"stdout","text":"tick"}`))
				time.Sleep(time.Second)
			}
		}, ""},
		"loses a message": {func(*line, message) {}, func(l *line, _ message) {
			l.reportLost(&oversizeError{size: 1 << 30})
		}, "OutputLost"},
		"has lost one before": {func(l *line, _ message) { l.reportLost(&oversizeError{size: 1 << 30}) },
			func(*line, message) {}, "OutputLost"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &line{session: "s", gone: make(chan struct{}), implementation: denoImplementation}
				first := true
				l.send = func(_ context.Context, request message) error {
					cell := first
					first = false
					go func() {
						reply := said(request, typeExecuteReply, `{"status":"ok"}`)
						reply.Channel = channelShell
						l.route(reply)
						if !cell {
							test.after(l, request)
						}
						l.route(said(request, typeStatus, `{"execution_state":"idle"}`))
						if cell {
							test.end(l, request)
						}
					}()
					return nil
				}
				defer time.Sleep(time.Hour) // until the goroutines have ended
				began := time.Now()
				reply, err := l.Execute(t.Context(), "", func(kernel.Output) {})
				got := ""
				if reply.Error != nil {
					got = reply.Error.Name
				}
				if err != nil || got != test.want || time.Since(began) > time.Minute {
					t.Errorf("%q, %v after %v, want %q", got, err, time.Since(began), test.want)
				}
				if q := l.current(); q != nil {
					t.Error("the kernel is taken for busy")
				}
			})
		})
	}
}
