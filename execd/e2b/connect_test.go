package e2b_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"sandbox.internal/test/wait"
)

// TestMessagesOfConnect: what of the protocol is refused, and how.
func TestMessagesOfConnect(t *testing.T) {
	t.Parallel()
	d := start(t)
	const list, follow = "/process.Process/List", "/process.Process/Connect"
	for name, test := range map[string]struct {
		path    string
		headers headers
		body    []byte
		status  int
		code    string
		says    string
	}{
		"a binary message":       {list, headers{"Content-Type": "application/proto"}, nil, 415, "unimplemented", "binary"},
		"no content type":        {list, nil, nil, 415, "unimplemented", "must be application/json"},
		"binary messages":        {follow, headers{"Content-Type": "application/connect+proto"}, nil, 415, "unimplemented", "binary"},
		"a compressed body":      {list, headers{"Content-Type": "application/json", "Content-Encoding": "gzip"}, nil, 415, "unimplemented", "compressed"},
		"compressed messages":    {follow, headers{"Content-Type": "application/connect+json", "Connect-Content-Encoding": "gzip"}, nil, 415, "unimplemented", "compressed"},
		"no JSON":                {list, headers{"Content-Type": "application/json"}, []byte("{"), 400, "invalid_argument", "body"},
		"a time that is none":    {list, headers{"Content-Type": "application/json", "Connect-Timeout-Ms": "soon"}, nil, 400, "invalid_argument", "Connect-Timeout-Ms"},
		"a call with parameters": {list, headers{"Content-Type": "application/json; charset=utf-8"}, []byte("{}"), 200, "", ""},
		"no message at all":      {list, headers{"Content-Type": "application/json"}, nil, 200, "", ""},
		"a field of the future":  {list, headers{"Content-Type": "application/json"}, []byte(`{"x":[1]}`), 200, "", ""},
		"too long": {list, headers{"Content-Type": "application/json"}, []byte(strings.Repeat(" ", 8<<20) + "{}"), 429,
			"resource_exhausted", "longer"},
	} {
		t.Run(name, func(t *testing.T) {
			response := d.post(t.Context(), t, test.path, test.body, test.headers)
			defer response.Body.Close()
			data, err := io.ReadAll(response.Body)
			must(t, err)
			var got struct{ Code, Message string }
			must(t, json.Unmarshal(data, &got))
			if response.StatusCode != test.status || got.Code != test.code || !strings.Contains(got.Message, test.says) {
				t.Errorf("%d %s, want %d %s with %q", response.StatusCode, data, test.status, test.code, test.says)
			}
		})
	}

	for name, test := range map[string]struct {
		body       []byte
		code, says string
	}{
		"nothing":        {nil, "invalid_argument", "no message"},
		"half a message": {frame(0, []byte("{}"))[:6], "invalid_argument", "completely"},
		"two messages":   {append(frame(0, []byte("{}")), frame(0, []byte("{}"))...), "invalid_argument", "more than one"},
		"compressed":     {frame(1, []byte("{}")), "unimplemented", "compressed"},
		"too long":       {[]byte{0, 0xff, 0, 0, 0}, "resource_exhausted", "longer"},
		"no JSON":        {frame(0, []byte("[")), "invalid_argument", "body"},
		"a wrong type":   {frame(0, []byte(`{"process":{"pid":-1}}`)), "invalid_argument", "number"},
	} {
		t.Run("stream: "+name, func(t *testing.T) {
			response := d.post(wait.Context(t), t, follow, test.body, headers{"Content-Type": "application/connect+json"})
			defer response.Body.Close()
			s := &stream{t: t, body: response.Body}
			out, last := s.next()
			failed, _ := out["error"].(message)
			text, _ := failed["message"].(string)
			if response.StatusCode != http.StatusOK || !last || failed["code"] != test.code || !strings.Contains(text, test.says) {
				t.Errorf("%s %v, want %s with %q", response.Status, out, test.code, test.says)
			}
		})
	}
}

// TestToken: without the token of the sandbox nothing is answered.
func TestToken(t *testing.T) {
	t.Parallel()
	d := start(t)
	response := d.post(t.Context(), t, "/process.Process/List", nil, headers{"Content-Type": "application/json", tokenHeader: "wrong"})
	response.Body.Close()
	if response.StatusCode != http.StatusUnauthorized {
		t.Errorf("a wrong token: %s", response.Status)
	}
}
