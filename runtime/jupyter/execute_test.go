package jupyter

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sandbox.internal/runtime/kernel"
)

// TestALongMessageIsNotSilence: what takes long to arrive, or to be decoded, is waited for; what does not come is lost.
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
			})
		})
	}
}
