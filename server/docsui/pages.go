package docsui

import (
	"bytes"
	"html/template"
	"path"
)

// view is a page: one contract in one program.
type view struct {
	Program string // as the script calls it
	Title   string
	Verb    string
	Path    string
	Script  string // names of assets
	Style   string // "" for none
}

func views() []view {
	return []view{
		{Program: "swagger", Title: "Swagger UI", Verb: "Try", Path: "/docs", Script: "swagger-ui-bundle.js", Style: "swagger-ui.css"},
		{Program: "redoc", Title: "ReDoc", Verb: "Read", Path: "/redoc", Script: "redoc.standalone.js"},
	}
}

// pathOf is where a view shows a contract. The first contract also has the view's own path.
func pathOf(v view, c contract) string { return path.Join(v.Path, c.Name) }

// link is an entry of the bar at the top of a page.
type link struct {
	Text, To string
	Here     bool
}

// page is what the template needs.
type page struct {
	View      view
	Contract  contract
	Contracts []link // this view, each contract
	Views     []link // this contract, each view
}

func (p *Pages) addPages() error {
	layout, err := template.New("page.html").Funcs(template.FuncMap{"asset": p.asset}).ParseFS(own, "page/page.html")
	if err != nil {
		return err
	}
	for _, v := range views() {
		for i, c := range contracts() {
			this := page{View: v, Contract: c}
			for _, other := range contracts() {
				this.Contracts = append(this.Contracts, link{other.Title, pathOf(v, other), other.Name == c.Name})
			}
			for _, other := range views() {
				this.Views = append(this.Views, link{other.Verb + " (" + other.Title + ")", pathOf(other, c), other.Program == v.Program})
			}
			var html bytes.Buffer
			if err := layout.Execute(&html, this); err != nil {
				return err
			}
			p.Add(pathOf(v, c), html.Bytes())
			if i == 0 {
				p.Add(v.Path, html.Bytes())
			}
		}
	}
	return nil
}

// asset returns the URL of an asset. It changes with the content, so that browsers may keep what
// they have.
func (p *Pages) asset(name string) string {
	return p.URL("/docs/assets/" + name)
}
