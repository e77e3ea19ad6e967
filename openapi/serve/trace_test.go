package serve

import (
	"net/http"
	"testing"
)

// TestTraceID: a header that is no trace by the rules of W3C Trace Context is none.
func TestTraceID(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	const parent = "-00f067aa0ba902b7"
	for value, want := range map[string]string{
		"00-" + id + parent + "-01":      id,
		"00-" + id + parent + "-00":      id,
		"cc-" + id + parent + "-01-more": id,
		"":                               "",
		"ff-" + id + parent + "-01":      "",
		"00-" + id + parent:              "",
		"00-" + id + "-01":               "",
		"00-4BF92f3577b34da6a3ce929d0e0e4736" + parent + "-01": "",
		"00-00000000000000000000000000000000" + parent + "-01": "",
		"00-" + id + "-0000000000000000-01":                    "",
		"00-" + id[1:] + "\n" + parent + "-01":                 "",
	} {
		r := &http.Request{Header: http.Header{"Traceparent": {value}}}
		if got := traceID(r); got != want {
			t.Errorf("the trace of %q is %q, want %q", value, got, want)
		}
	}
}
