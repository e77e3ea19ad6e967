package e2b

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sandbox.internal/server/lifecycle"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	id    = "5f0c1e0e-2f0b-4a53-9b0e-0a4a3c1c7d11"
	short = "5f0c1e0e2f0b4a539b0e0a4a3c1c7d11"
)

var now = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// TestMetadataFilter: clients escape keys and values, join them, and escape the whole twice.
func TestMetadataFilter(t *testing.T) {
	for sent, want := range map[string]map[string]string{
		"":                                nil,
		"a=b":                             {"a": "b"},
		"team%2520name=a%2520%2526%2520b": {"team name": "a & b"},
		"plus=1%252B1&percent=100%2525":   {"plus": "1+1", "percent": "100%"},
		"not%20twice=100%25":              {"not twice": "100%"},
	} {
		query, err := metadataFilter(sent)
		if err != nil {
			t.Errorf("%s: %v", sent, err)
			continue
		}
		got, err := lifecycle.ParseMetadataFilter(query.Get("metadata"))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", sent, got, err, want)
		}
	}
}

func TestPolicies(t *testing.T) {
	off := false
	for name, test := range map[string]struct {
		body createBody
		want *policy
		says string
	}{
		"nothing":               {createBody{}, nil, ""},
		"offline":               {createBody{AllowInternetAccess: &off}, &policy{"deny", []rule{}}, ""},
		"a name alone":          {createBody{Network: &network{AllowOut: []string{"x.test"}}}, nil, "denyOut"},
		"a name":                {createBody{Network: &network{AllowOut: []string{"*.x.test"}, DenyOut: []string{anywhere}}}, &policy{"deny", []rule{{"allow", "*.x.test"}}}, ""},
		"an address":            {createBody{Network: &network{DenyOut: []string{"10.0.0.0/8", "192.0.2.1"}}}, &policy{"allow", []rule{{"deny", "10.0.0.0/8"}, {"deny", "192.0.2.1"}}}, ""},
		"allowed before":        {createBody{Network: &network{AllowOut: []string{"10.1.0.0/16"}, DenyOut: []string{"10.0.0.0/8"}}}, &policy{"allow", []rule{{"allow", "10.1.0.0/16"}, {"deny", "10.0.0.0/8"}}}, ""},
		"a name that is denied": {createBody{Network: &network{DenyOut: []string{"x.test"}}}, nil, "network.denyOut"},
		"rules":                 {createBody{Network: &network{Rules: map[string]any{"x": 1}}}, nil, "network.rules"},
		"empty rules":           {createBody{Network: &network{Rules: map[string]any{}}}, nil, ""},
	} {
		got, refusal := test.body.policy()
		if !reflect.DeepEqual(got, test.want) || (refusal == "") != (test.says == "") || !strings.Contains(refusal, test.says) {
			t.Errorf("%s: %+v, %q", name, got, refusal)
		}
	}
}

// TestPolicyInfo: a policy is shown as the client gave it.
func TestPolicyInfo(t *testing.T) {
	for name, asked := range map[string]network{
		"an address":       {DenyOut: []string{"192.0.2.1"}},
		"denied":           {DenyOut: []string{anywhere}},
		"allowed in parts": {AllowOut: []string{"*.x.test", "10.0.0.0/8"}, DenyOut: []string{anywhere, "10.1.0.0/16"}},
	} {
		made, refusal := asked.policy(false, "")
		if refusal != "" {
			t.Fatalf("%s: %s", name, refusal)
		}
		if got := made.info(); !slices.Equal(got.AllowOut, asked.AllowOut) || !slices.Equal(got.DenyOut, asked.DenyOut) {
			t.Errorf("%s: %+v, want %+v", name, got, asked)
		}
	}
}

// TestCursors: a page ends where the next begins, whatever is created meanwhile.
func TestCursors(t *testing.T) {
	at := cursor{now, id, 7}
	parsed, err := parseCursor(at.String())
	if err != nil || !parsed.CreatedAt.Equal(now) || parsed.ID != id || parsed.Passed != 7 {
		t.Errorf("%+v, %v", parsed, err)
	}
	if _, err := parseCursor("x"); err == nil {
		t.Error("a cursor that was never given is accepted")
	}
	for _, test := range []struct {
		created time.Time
		id      string
		before  bool // in the list, newest first
	}{{now.Add(time.Second), "z", true}, {now.Add(-time.Second), "a", false}, {now, "0", true}, {now, "z", false}} {
		if got := at.before(lifecycle.Sandbox{ID: test.id, CreatedAt: test.created}); got != test.before {
			t.Errorf("%s, %s: %v", test.created, test.id, got)
		}
	}
}

func TestTemplates(t *testing.T) {
	templates := Templates{Named: Default("base:1"), Images: true}
	for id, image := range map[string]string{"base": "base:1", "code-interpreter-v1": "base:1", "python:3.12": "python:3.12", "desktop": "", "": ""} {
		found, ok := templates.find(id)
		if ok != (image != "") || found.Image != image || len(found.Entrypoint) == 0 {
			t.Errorf("%q: %+v, %v", id, found, ok)
		}
	}
	templates.Images = false
	if _, ok := templates.find("python:3.12"); ok {
		t.Error("an image is accepted")
	}
}

// TestNetworkOfASandbox: a network without rules is shown where there is none, and none where the
// rules are not known.
// TestNotStarted: a template that is not there and whose image is not there either is not found.
func TestNotStarted(t *testing.T) {
	templates := Templates{Named: map[string]Template{"base": {Name: "base", Image: "one"}}, Images: true}
	for name, test := range map[string]struct {
		id     string
		reason lifecycle.Reason
		status int
		text   string
	}{
		"no image":                        {"bsae", lifecycle.ReasonImagePullError, 404, `template "bsae": not found; there are: base, and no such image: why`},
		"no image of a template":          {"base", lifecycle.ReasonImagePullError, 500, "the sandbox did not start: why"},
		"an image that does not start up": {"bsae", lifecycle.ReasonContainerError, 500, "the sandbox did not start: why"},
	} {
		template, _ := templates.find(test.id)
		if status, text := templates.notStarted(template, test.reason, "why"); status != test.status || text != test.text {
			t.Errorf("%s: %d, %q, want %d, %q", name, status, text, test.status, test.text)
		}
	}
}

func TestNetworkOfASandbox(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   *networkInfo
	}{
		"a policy":   {200, `{"defaultAction":"deny","egress":[{"action":"allow","target":"10.0.0.1"}]}`, &networkInfo{[]string{"10.0.0.1"}, []string{anywhere}, true}},
		"no sidecar": {409, `{}`, &networkInfo{AllowPublicTraffic: true}},
		"no answer":  {503, `{}`, nil},
		"an error":   {500, `{}`, nil},
		"other JSON": {200, `[]`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			service := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			x := &exchange{
				edge: &Edge{Options: Options{Next: service}}, w: httptest.NewRecorder(),
				r: httptest.NewRequestWithContext(t.Context(), "GET", "http://service/sandboxes/x", nil),
			}
			if got := x.network(lifecycle.Sandbox{}); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
