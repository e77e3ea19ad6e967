// Package docsui serves the contracts for people: /docs is Swagger UI, /redoc is ReDoc, and the
// YAML is beside them. /llms.txt describes the project to language models. Everything comes from
// the binary, so the pages work without the internet, and a browser asks no other host. None of it
// needs a key.
package docsui

import (
	"embed"
	"fmt"
	"path"
	"strings"

	"sandbox.internal/server/static"
)

// assets are the browser's parts of Swagger UI and ReDoc with their licences. scripts/docsui.sh
// makes them.
//
//go:embed assets
var assets embed.FS

// own are the page, its style and its script.
//
//go:embed page
var own embed.FS

// llms has the project, its links and the shortest programs, for language models.
//
//go:embed llms.txt
var llms []byte

// policy lets a page load from, send to and be framed by its own service only. ReDoc writes its
// style into the page, both draw pictures from data, and ReDoc searches in a worker that it makes
// itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; " +
	"worker-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Pages are the pages and everything that they load, ready to be served. They may be used by
// several goroutines at once.
type Pages struct{ *static.Files }

// New prepares the pages. It fails when something embedded is broken, which is an error of the
// build.
func New() (*Pages, error) {
	p := &Pages{static.New(policy)}
	if err := p.addAssets(); err != nil {
		return nil, fmt.Errorf("docsui: %w", err)
	}
	p.addContracts()
	p.Add("/llms.txt", llms)
	if err := p.addPages(); err != nil {
		return nil, fmt.Errorf("docsui: %w", err)
	}
	return p, nil
}

func (p *Pages) addAssets() error {
	for _, from := range []struct {
		files     embed.FS
		directory string
	}{{assets, "assets"}, {own, "page"}} {
		entries, err := from.files.ReadDir(from.directory)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if path.Ext(entry.Name()) == ".html" {
				continue // a template
			}
			data, err := from.files.ReadFile(path.Join(from.directory, entry.Name()))
			if err != nil {
				return err
			}
			name, isPacked := strings.CutSuffix(entry.Name(), ".gz")
			if isPacked {
				p.AddPacked("/docs/assets/"+name, data)
			} else {
				p.Add("/docs/assets/"+name, data)
			}
		}
	}
	return nil
}
