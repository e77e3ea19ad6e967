// Package static serves files that are embedded in the program: with a media type that does not
// depend on the machine, a tag of the content, compressed where the browser takes it, and the
// headers that keep a page to its own service.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// forever is for what has a URL that changes with its content.
const forever = "public, max-age=31536000, immutable"

// Files are served as they are. Once complete they may be used by several goroutines at once.
type Files struct {
	policy string
	files  map[string]file // by path
}

type file struct {
	contentType string
	plain       func() (content []byte, digest string, err error)
	packed      []byte // gzip; nil for what is not worth it
	digest      string // "" of a file that is not made yet
}

// New returns no files. The policy is their Content-Security-Policy.
func New(policy string) *Files { return &Files{policy: policy, files: map[string]file{}} }

// Add adds a file under the path of its URL.
func (f *Files) Add(at string, content []byte) {
	digest := digestOf(content)
	plain := func() ([]byte, string, error) { return content, digest, nil }
	f.files[at] = file{contentType: contentTypes[path.Ext(at)], plain: plain, digest: digest}
}

// AddPacked adds a file that is compressed with gzip. It is unpacked for the few clients that do
// not accept that.
func (f *Files) AddPacked(at string, packed []byte) {
	digest := digestOf(packed)
	plain := func() ([]byte, string, error) {
		content, err := unpack(packed)
		return content, digest, err
	}
	f.files[at] = file{contentType: contentTypes[path.Ext(at)], plain: plain, packed: packed, digest: digest}
}

// AddMade adds a file that is made when it is first asked for. It has no [Files.URL].
func (f *Files) AddMade(at string, content func() ([]byte, error)) {
	type made struct {
		content []byte
		digest  string
	}
	once := sync.OnceValues(func() (made, error) {
		content, err := content()
		return made{content, digestOf(content)}, err
	})
	plain := func() ([]byte, string, error) {
		m, err := once()
		return m.content, m.digest, err
	}
	f.files[at] = file{contentType: contentTypes[path.Ext(at)], plain: plain}
}

func unpack(packed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return base64.RawURLEncoding.EncodeToString(sum[:12])
}

// Paths are the paths of the files, sorted.
func (f *Files) Paths() []string { return slices.Sorted(maps.Keys(f.files)) }

// URL returns the path of a file with its digest, so that browsers may keep what they have for as
// long as it does not change.
func (f *Files) URL(at string) string { return at + "?v=" + f.files[at].digest }

// Keep sets the headers that keep a page to its own service.
func Keep(header http.Header, policy string) {
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// ServeHTTP answers GET and HEAD of one of [Files.Paths].
func (f *Files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found, ok := f.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	content, digest := found.packed, found.digest
	gzipped := found.packed != nil && acceptsGzip(r.Header.Get("Accept-Encoding"))
	if !gzipped {
		var err error
		if content, digest, err = found.plain(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
	}
	header := w.Header()
	Keep(header, f.policy)
	header.Set("Content-Type", found.contentType)
	// no-cache means: ask again each time; the answer is 304 as long as nothing has changed.
	header.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == digest {
		header.Set("Cache-Control", forever)
	}
	if found.packed != nil {
		header.Set("Vary", "Accept-Encoding")
	}
	if gzipped {
		header.Set("Content-Encoding", "gzip")
		digest += "-gzip"
	}
	header.Set("ETag", `"`+digest+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reads an Accept-Encoding as RFC 9110 writes it, without weighing one coding against
// another: gzip is used wherever it is accepted.
func acceptsGzip(accepted string) bool {
	for entry := range strings.SplitSeq(accepted, ",") {
		coding, quality, _ := strings.Cut(entry, ";")
		if strings.EqualFold(strings.TrimSpace(coding), "gzip") {
			weight := strings.TrimLeft(strings.ReplaceAll(quality, " ", ""), "q=")
			return strings.Trim(weight, "0.") != "" || weight == ""
		}
	}
	return false
}

// contentTypes do not depend on the machine's table of file names.
var contentTypes = map[string]string{
	"":      "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
	".txt":  "text/plain; charset=utf-8",
	".yaml": "application/yaml",
}
