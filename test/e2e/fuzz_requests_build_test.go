package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"pgregory.net/rapid"
)

// drawn is a request that a generator made.
type drawn struct {
	method string
	target string // path and query as they are sent
	header http.Header
	body   string
}

// String shows a request so that a person can repeat it.
func (d drawn) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s\n", d.method, d.target)
	for _, name := range slices.Sorted(maps.Keys(d.header)) {
		fmt.Fprintf(&out, "%s: %q\n", name, d.header[name])
	}
	shown := d.body
	if len(shown) > 2000 {
		shown = fmt.Sprintf("%s ... (%d bytes)", shown[:2000], len(d.body))
	}
	fmt.Fprintf(&out, "%q", shown)
	return out.String()
}

func (d drawn) request(base string) (*http.Request, error) {
	request, err := http.NewRequest(d.method, base, strings.NewReader(d.body))
	if err != nil {
		return nil, err
	}
	// Opaque is sent as it is; a parsed path would be encoded again.
	request.URL.Opaque = request.URL.Path + d.target
	request.Header = d.header.Clone()
	return request, nil
}

// documented is an operation together with its place in the contract.
type documented struct {
	path, method string
	operation    *openapi3.Operation
	parameters   []*openapi3.Parameter
}

// inOrder are the operations of a contract. Those that end something come last, so that the others
// have something to work on.
func inOrder(document *openapi3.T) []documented {
	var all []documented
	for path, item := range document.Paths.Map() {
		for method, operation := range item.Operations() {
			d := documented{path: path, method: method, operation: operation}
			for _, ref := range slices.Concat(item.Parameters, operation.Parameters) {
				d.parameters = append(d.parameters, ref.Value)
			}
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b documented) int {
		if ends := func(d documented) bool { return d.method == http.MethodDelete }; ends(a) != ends(b) {
			if ends(a) {
				return 1
			}
			return -1
		}
		return strings.Compare(a.path+a.method, b.path+b.method)
	})
	return all
}

// draw makes a request to an operation. Half of them are meant to be good; the others are spoilt
// somewhere.
func (w *world) draw(t *rapid.T, d documented, key http.Header) drawn {
	good := rapid.Bool().Draw(t, "good")
	r := drawn{method: d.method, target: d.path, header: http.Header{}}
	query := w.parameters(t, d, &r, good)
	if !good && rapid.IntRange(0, 4).Draw(t, "odd query") == 0 {
		query = append(query,
			rapid.SampledFrom([]string{"%zz", "&&&", "=", "a", "%00=1", "a;b",
				url.QueryEscape(oddString(t, "parameter")) + "=1"}).Draw(t, "query"))
	}
	if len(query) > 0 {
		r.target += "?" + strings.Join(query, "&")
	}
	if rapid.IntRange(0, 19).Draw(t, "key") > 0 {
		maps.Copy(r.header, key)
	} else if rapid.Bool().Draw(t, "wrong key") {
		for name := range key {
			r.header.Set(name, sendable(oddString(t, "the key")))
		}
	}
	if !good {
		w.spoilHeader(t, &r)
	}
	if body := d.operation.RequestBody; body != nil {
		w.body(t, body.Value, &r, good)
	} else if !good && rapid.Bool().Draw(t, "an unexpected body") {
		r.body = oddString(t, "body")
	}
	return r
}

// parameters puts path and headers into r and returns the query.
func (w *world) parameters(t *rapid.T, d documented, r *drawn, good bool) (query []string) {
	for _, p := range d.parameters {
		required := p.Required || p.In == openapi3.ParameterInPath
		if !good && p.In != openapi3.ParameterInPath &&
			rapid.IntRange(0, 5).Draw(t, "toggle "+p.Name) == 0 {
			required = !required
		}
		if !required && rapid.Bool().Draw(t, "without "+p.Name) {
			continue
		}
		for _, value := range w.values(t, p, good) {
			switch p.In {
			case openapi3.ParameterInPath:
				if value == "" {
					value = "x" // an empty element is another path
				}
				r.target = strings.ReplaceAll(r.target, "{"+p.Name+"}", url.PathEscape(value))
			case openapi3.ParameterInQuery:
				query = append(query, url.QueryEscape(p.Name)+"="+url.QueryEscape(value))
			case openapi3.ParameterInHeader:
				r.header.Add(p.Name, sendable(value))
			}
		}
	}
	return query
}

// values draws what is given for one parameter: mostly one value, for arrays and sometimes by
// mistake several.
func (w *world) values(t *rapid.T, p *openapi3.Parameter, good bool) []string {
	drawOne := func() any {
		if !good && rapid.IntRange(0, 2).Draw(t, "odd "+p.Name) == 0 {
			return oddString(t, p.Name)
		}
		return w.valid(t, p.Schema.Value, p.Name)
	}
	values := []any{drawOne()}
	if !good && p.In != openapi3.ParameterInPath &&
		rapid.IntRange(0, 5).Draw(t, "repeat "+p.Name) == 0 {
		values = append(values, drawOne())
	}
	var texts []string
	for _, value := range values {
		items, ok := value.([]any)
		if !ok {
			items = []any{value}
		}
		for _, item := range items {
			if s, ok := item.(string); ok {
				texts = append(texts, s)
			} else {
				texts = append(texts, text(item))
			}
		}
	}
	return texts
}

// sendable leaves out of a header's value what HTTP cannot carry.
func sendable(value string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, value)
}

func (w *world) spoilHeader(t *rapid.T, r *drawn) {
	switch rapid.IntRange(0, 9).Draw(t, "header") {
	case 0:
		r.header.Set("Accept",
			rapid.SampledFrom([]string{"text/plain", "text/event-stream", "application/xml",
				"*/*;q=0", ",", "text/html, image/*"}).Draw(t, "Accept"))
	case 1:
		r.header.Set("X-Request-ID", sendable(oddString(t, "X-Request-ID")))
	case 2:
		r.header.Set("Accept-Encoding", "gzip, br")
	case 3:
		r.header.Set("If-None-Match", "*")
	case 4:
		r.header.Set("Origin", "https://elsewhere.example")
	case 5:
		r.header.Set("X-HTTP-Method-Override", "DELETE")
	}
}

func (w *world) body(t *rapid.T, body *openapi3.RequestBody, r *drawn, good bool) {
	contentType := rapid.SampledFrom(slices.Sorted(maps.Keys(body.Content))).Draw(t, "content type")
	schema := body.Content[contentType].Schema.Value
	if strings.HasPrefix(contentType, "multipart/") {
		r.body, contentType = w.form(t, schema, good)
	} else {
		value := w.valid(t, schema, "body")
		if !good {
			for range rapid.IntRange(0, 2).Draw(t, "changes") {
				value = spoil(t, value)
			}
		}
		r.body = text(value)
		if !good && rapid.IntRange(0, 3).Draw(t, "spoil the text") == 0 {
			r.body = spoilText(t, r.body)
		}
	}
	if !good && rapid.IntRange(0, 5).Draw(t, "odd content type") == 0 {
		contentType = rapid.SampledFrom([]string{
			"", "text/plain", "application/json; charset=latin1", "APPLICATION/JSON",
			"application/json;", "application/merge-patch+json", "a", "/", "multipart/form-data",
			"multipart/form-data; boundary=", "application/x-www-form-urlencoded",
			"application/json, application/json", "*/*",
		}).Draw(t, "Content-Type")
	}
	if contentType != "" {
		r.header.Set("Content-Type", contentType)
	}
}

// form draws a form with files. Fields come in pairs of what the schema has, as JSON where the
// world has a schema of that name.
func (w *world) form(t *rapid.T, schema *openapi3.Schema, good bool) (body, contentType string) {
	var out bytes.Buffer
	writer := multipart.NewWriter(&out)
	if err := writer.SetBoundary("the-boundary-of-this-form"); err != nil {
		panic(err) // it is a good boundary
	}
	names := []string{"metadata", "file"}
	if !good {
		names = rapid.SliceOfN(rapid.SampledFrom([]string{"metadata", "file", "other", ""}), 0,
			5).Draw(t, "fields")
	}
	for _, name := range names {
		header := textproto.MIMEHeader{"Content-Disposition": {fmt.Sprintf(`form-data; name="%s"`,
			name)}}
		content := rapid.String().Draw(t, "content")
		if name == "metadata" {
			metadata := any(members{{"path",
				w.string(t, schema.Properties["metadata"].Value, "path")}, {"mode", token("640")}})
			if !good {
				metadata = spoil(t, metadata)
			}
			content = text(metadata)
		} else {
			header.Set("Content-Disposition", header.Get("Content-Disposition")+`; filename="a"`)
			if !good && rapid.Bool().Draw(t, "a digest") {
				header.Set("Repr-Digest", sendable(oddString(t, "digest")))
			}
		}
		part, err := writer.CreatePart(header)
		if err == nil {
			_, err = io.WriteString(part, content)
		}
		if err != nil {
			panic(err) // a buffer takes everything
		}
	}
	if good || rapid.IntRange(0, 5).Draw(t, "an end") > 0 {
		if err := writer.Close(); err != nil {
			panic(err)
		}
	}
	return out.String(), writer.FormDataContentType()
}
