package conformance

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
)

// testExtensionsComeBackByteForByte sends what JSON libraries like to rewrite: numbers, the order
// of keys, spaces, escapes, duplicates.
func testExtensionsComeBackByteForByte(t *testing.T, b Backend) {
	s := Start(t, b, Plan{Program: true})
	nasty := []string{
		`{}`,
		"{ \t\"z\" : 1 ,\n\r \"a\":2 }",
		`{"n":[12345678901234567890123,1.50,1e400,-0,-0.0,1E+2]}`,
		`{"html":"<script>&amp;</script>","escaped":"\u003c\u0041\/\u2028","raw":"` +
			"\u2028\u2029é\U0001F600" + `","control":"\u0000\u001f"}`,
		`{"twice":1,"twice":{"twice":[]},"":null,"lone":"\ud800"}`,
		`{"extensions":{"extensions":true},"deep":` + strings.Repeat("[", 500) + strings.Repeat("]",
			500) + `}`,
		"{\"invalid UTF-8\":\"\xff\xc3\"}",
	}
	sent := map[string]string{}
	for _, extensions := range nasty {
		// A name in another case is unknown; of two with the same name the last one counts.
		body := `{"extensions":{"overwritten":1},` +
			strings.TrimPrefix(strings.TrimSuffix(Encode(t, s.Idle()), "}"),
				"{") + `,"extensions":` + extensions + `}`
		got := s.Send(t, http.MethodPost, "/v1/sandboxes", body, "Prefer", "wait=60")
		var created struct{ ID string }
		if err := json.Unmarshal([]byte(got.Body), &created); err != nil || created.ID == "" {
			t.Fatalf("%s: %v; %s", extensions, err, got)
		}
		sent[created.ID] = extensions
	}
	without := s.Running(t, s.Idle())
	check := func(when string) {
		t.Helper()
		list := s.Send(t, http.MethodGet, "/v1/sandboxes", "").Body
		for id, want := range sent {
			got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+id, "")
			if !strings.Contains(got.Body, `"extensions":`+want+`}`) {
				t.Errorf("%s GET shows %s, sent %s", when, got.Body, want)
			}
			if !strings.Contains(list, `"extensions":`+want+`}`) {
				t.Errorf("%s the list lacks %s", when, want)
			}
		}
		if got := s.Send(t, http.MethodGet, "/v1/sandboxes/"+without,
			""); strings.Contains(got.Body, "extensions") {
			t.Errorf("%s a sandbox without extensions shows some: %s", when, got)
		}
	}
	check("at once")
	s.Kill()
	s.Boot(t)
	check("after a kill")
	s.Halt(t)
	if err := os.RemoveAll(s.Directory); err != nil {
		t.Fatal(err)
	}
	s.Boot(t)
	check("after the loss of its directory")

	for _, refused := range []string{`null`, `[]`, `"text"`, `1`} {
		got := s.Send(t, http.MethodPost, "/v1/sandboxes",
			strings.TrimSuffix(Encode(t, s.Idle()), "}")+`,"extensions":`+refused+`}`)
		WantProblem(t, got, 400, "INVALID_REQUEST_BODY", "extensions")
	}
}
