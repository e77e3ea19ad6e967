package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	gen "sandbox.internal/gen/execd"
	"sandbox.internal/openapi/serve"
)

// FuzzMetadata holds the metadata of uploads to encoding/json: what is taken means the same to
// both, so no file goes where another reader of the same text would not put it. What is refused is
// the client's fault and says where.
func FuzzMetadata(f *testing.F) {
	for _, seed := range []string{
		`{"path":"/a"}`, `{"path":"/a","owner":"root","group":"0","mode":644}`, ` { "path" : "a" } `, `{"path":"\u0000"}`,
		`{"path":"/a","path":"/b"}`, `{"PATH":"/a"}`, `{"path":"/a","Path":"/b"}`, `{"path":"/a"}{}`, `{"path":"/a"}]`, `{"path":"/a"} x`,
		`{"path":null}`, `{"path":7}`, `{"path":["/a"]}`, `{"path":"/a","mode":"644"}`, `{"path":"/a","mode":6.44e2}`, `{"path":"/a","mode":null}`,
		`{"path":"/a","mode":99999999999999999999}`, `{"path":"/a","size":1}`, `{}`, `[]`, `null`, `"path"`, ``, `{`, `{"path":`, `{"path":"/a",}`,
		"{\"path\":\"\xff\"}", `{"path":"\ud800"}`, `{"":"/a"}`, `{"path":"/a","owner":{}}`,
		`{"path":"/a","raw_path":"L3RtcC//"}`, `{"path":"/a","raw_path":""}`, `{"path":"/a","raw_path":"/"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		meta, err := parseMetadata(text)
		if err != nil {
			var problem *serve.Problem
			if !errors.As(err, &problem) || problem.Status != http.StatusBadRequest || !strings.HasPrefix(problem.Message, "body/metadata") {
				t.Errorf("%q: %v", text, err)
			}
			return
		}
		if !utf8.Valid(text) {
			t.Errorf("%q is not UTF-8 and was taken", text)
		}
		var other gen.UploadMetadata
		if err := json.Unmarshal(text, &other); err != nil {
			t.Fatalf("%q was taken, and encoding/json says %v", text, err)
		}
		want, err := exactPath("", other.Path, other.RawPath)
		if err != nil {
			t.Fatalf("%q was taken, with %v", text, err)
		}
		p := meta.Permission
		if meta.Path != want || meta.Path == "" || p.Owner != value(other.Owner) || p.Group != value(other.Group) || value(p.Mode) != value(other.Mode) || (p.Mode == nil) != (other.Mode == nil) {
			t.Errorf("%q means %+v, and %+v to encoding/json", text, meta, other)
		}
	})
}
