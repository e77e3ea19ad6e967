// Package docsui serves the contracts for people: /docs is Swagger UI, /redoc is ReDoc, and the YAML is beside them. Everything comes from
// the binary, so the pages work without the internet, and a browser asks no other host. None of it needs a key.
package docsui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"
)

// assets are the browser's parts of Swagger UI and ReDoc with their licences. scripts/docsui.sh makes them.
//
//go:embed assets
var assets embed.FS

// own are the page, its style and its script.
//
//go:embed page
var own embed.FS

// policy lets a page load from, send to and be framed by nobody but its own service. ReDoc writes its style into the page, both draw
// pictures from data, and ReDoc searches in a worker that it makes itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// forever is for what has a URL that changes with its content.
const forever = "public, max-age=31536000, immutable"

// file is something that is served as it is.
type file struct {
	contentType string
	plain       []byte
	packed      []byte // gzip; nil for what is not worth it
	digest      string
}

// Pages are the pages and everything that they load, ready to be served. They may be used by several goroutines at once.
type Pages struct {
	files map[string]file // by path
}

// New prepares the pages. It fails when a contract or something embedded is broken, which is an error of the build.
func New() (*Pages, error) {
	p := &Pages{files: map[string]file{}}
	if err := p.addAssets(); err != nil {
		return nil, fmt.Errorf("docsui: %w", err)
	}
	if err := p.addContracts(); err != nil {
		return nil, fmt.Errorf("docsui: %w", err)
	}
	if err := p.addPages(); err != nil {
		return nil, fmt.Errorf("docsui: %w", err)
	}
	return p, nil
}

// Paths are the paths that the pages answer, sorted.
func (p *Pages) Paths() []string { return slices.Sorted(maps.Keys(p.files)) }

// ServeHTTP answers GET and HEAD of one of [Pages.Paths].
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := p.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("X-Frame-Options", "DENY")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Type", f.contentType)
	// no-cache means: ask again each time; the answer is 304 as long as nothing has changed.
	header.Set("Cache-Control", "no-cache")
	if r.URL.Query().Get("v") == f.digest {
		header.Set("Cache-Control", forever)
	}
	content, tag := f.plain, f.digest
	if f.packed != nil {
		header.Set("Vary", "Accept-Encoding")
		if acceptsGzip(r.Header.Get("Accept-Encoding")) {
			header.Set("Content-Encoding", "gzip")
			content, tag = f.packed, f.digest+"-gzip"
		}
	}
	header.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reads an Accept-Encoding as RFC 9110 writes it, without weighing one coding against another: everybody who takes gzip
// is glad of it.
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

func (p *Pages) addAssets() error {
	for _, from := range []struct {
		files  embed.FS
		folder string
	}{{assets, "assets"}, {own, "page"}} {
		entries, err := from.files.ReadDir(from.folder)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if path.Ext(entry.Name()) == ".html" {
				continue // a template
			}
			data, err := from.files.ReadFile(path.Join(from.folder, entry.Name()))
			if err != nil {
				return err
			}
			name, isPacked := strings.CutSuffix(entry.Name(), ".gz")
			var packed []byte
			if isPacked {
				if packed, data, err = data, nil, nil; err == nil {
					data, err = unpack(packed)
				}
				if err != nil {
					return fmt.Errorf("%s: %w", entry.Name(), err)
				}
			}
			p.add("/docs/assets/"+name, data, packed)
		}
	}
	return nil
}

func (p *Pages) add(at string, plain, packed []byte) {
	sum := sha256.Sum256(plain)
	p.files[at] = file{
		contentType: contentTypes[path.Ext(at)],
		plain:       plain,
		packed:      packed,
		digest:      base64.RawURLEncoding.EncodeToString(sum[:12]),
	}
}

// contentTypes do not depend on what the machine knows of file names.
var contentTypes = map[string]string{
	"":      "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".txt":  "text/plain; charset=utf-8",
	".yaml": "application/yaml",
}

func unpack(packed []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(reader)
}
