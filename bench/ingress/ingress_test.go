package ingress

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// TestWrongAnswersThroughTheIngress: an answer that lost its bytes on the way is not measured.
func TestWrongAnswersThroughTheIngress(t *testing.T) {
	run := &measure.Run{Scale: measure.ScaleQuick}
	for _, answer := range []string{"", "{}", strings.ToUpper(smallAnswer)} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, answer) // a client that is gone fails on its own side
		}))
		t.Cleanup(server.Close)
		broken := &way{Process: &rig.Process{Client: server.Client()}, base: server.URL}
		for _, atOnce := range []int{1, measure.Clients} {
			if _, err := measureIngressRate(t.Context(), run, ways{broken, broken}, atOnce); !errors.Is(err, measure.ErrLost) {
				t.Errorf("%d clients that are answered with %q: %v", atOnce, answer, err)
			}
		}
	}
}
