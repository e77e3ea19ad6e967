package compat

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"net/http"
)

// withoutNulls returns a request, with a header of its own, whose JSON body has no fields that are
// null: these clients send null for what is absent. The body is read when the operation reads it,
// which is after the token was checked; change, unless it is nil, changes it then.
func withoutNulls(r *http.Request, change func([]byte) []byte) *http.Request {
	clean := *r
	clean.Header = r.Header.Clone()
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if r.ContentLength == 0 || r.Body == nil || r.Header.Get("Content-Type") != "" && (err != nil || media != "application/json") {
		return &clean
	}
	if r.ContentLength > maxBody {
		return &clean // it is refused
	}
	clean.Body = &nullFilter{body: r.Body, change: change}
	clean.ContentLength = -1 // not known yet
	clean.Header.Del("Content-Length")
	return &clean
}

// nullFilter is a JSON body without the fields that are null.
type nullFilter struct {
	body   io.ReadCloser
	change func([]byte) []byte // nil for none
	rest   io.Reader           // what is left of it; nil until it is read
}

// Read implements io.Reader.
func (f *nullFilter) Read(p []byte) (int, error) {
	if f.rest == nil {
		whole, err := io.ReadAll(io.LimitReader(f.body, maxBody+1))
		switch {
		case err != nil:
			return 0, err
		case len(whole) > maxBody: // it is refused
			f.rest = io.MultiReader(bytes.NewReader(whole), f.body)
		default:
			whole = dropNulls(whole, maxDepth)
			if f.change != nil {
				whole = f.change(whole)
			}
			f.rest = bytes.NewReader(whole)
		}
	}
	return f.rest.Read(p)
}

// Close implements io.Closer.
func (f *nullFilter) Close() error { return f.body.Close() }

// maxDepth is how deep fields that are null are looked for: no body of an operation has as many
// levels.
const maxDepth = 8

// dropNulls returns JSON without the fields of objects that are null, some levels deep. What is no
// JSON stays as it is, and so does a value that has no null: strings keep the text that the client
// sent.
func dropNulls(value []byte, levels int) []byte {
	if levels == 0 || !bytes.Contains(value, []byte("null")) {
		return value
	}
	switch trimmed := bytes.TrimLeft(value, " \t\r\n"); {
	case len(trimmed) == 0:
		return value
	case trimmed[0] == '{':
		var fields map[string]json.RawMessage
		if json.Unmarshal(value, &fields) != nil {
			return value
		}
		for name, field := range fields {
			if string(field) == "null" {
				delete(fields, name)
			} else {
				fields[name] = dropNulls(field, levels-1)
			}
		}
		return encodeOr(fields, value)
	case trimmed[0] == '[':
		var items []json.RawMessage
		if json.Unmarshal(value, &items) != nil {
			return value
		}
		for i, item := range items {
			items[i] = dropNulls(item, levels-1)
		}
		return encodeOr(items, value)
	}
	return value
}

func encodeOr(value any, otherwise []byte) []byte {
	encoded, err := json.Marshal(value)
	if err != nil {
		return otherwise
	}
	return encoded
}

// ourArguments returns the body of a command with its program and arguments as the contract has
// them: OpenSandbox has both in argv. A body that is wrong stays as it is, and is refused.
func ourArguments(body []byte) []byte {
	var fields map[string]json.RawMessage
	if !bytes.Contains(body, []byte(`"argv"`)) || json.Unmarshal(body, &fields) != nil {
		return body
	}
	var argv []json.RawMessage
	if _, both := fields["command"]; both || json.Unmarshal(fields["argv"], &argv) != nil || len(argv) == 0 {
		return body
	}
	delete(fields, "argv")
	fields["command"] = argv[0]
	fields["args"] = encodeOr(argv[1:], fields["args"])
	return encodeOr(fields, body)
}
