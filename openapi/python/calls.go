package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// call is a function of the module: one operation, and one form of its answer.
type call struct {
	Name, Doc, Method, Path string
	Arguments               []string
	Query, Headers          []field
	ContentType             string // an expression; empty for JSON and where there is no body
	Body                    bool
	BodyOptional            bool
	Kind, Answer, Returns   string // the description's class, the type in it, and both together
	Media                   string // of a ByteStream, where the answer has several; empty for any
}

var methods = []string{
	http.MethodGet, http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete,
}

// addCalls adds the operations of the contract, in the order of their names.
func (m *module) addCalls(doc *openapi3.T) error {
	for path, item := range doc.Paths.Map() {
		for _, method := range methods {
			operation := item.GetOperation(method)
			if operation == nil {
				continue
			}
			parameters := slices.Concat(item.Parameters, operation.Parameters)
			calls, err := newCalls(method, path, operation, parameters)
			if err != nil {
				return fmt.Errorf("%s: %w", operation.OperationID, err)
			}
			m.Calls = append(m.Calls, calls...)
		}
	}
	slices.SortFunc(m.Calls, func(a, b call) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

var successes = []int{
	http.StatusSwitchingProtocols, http.StatusOK, http.StatusCreated, http.StatusAccepted, http.StatusNoContent,
}

var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// newCalls makes one call for each media type of the answer. The first, JSON where there is some,
// has the operation's name.
func newCalls(
	method, path string, operation *openapi3.Operation, parameters openapi3.Parameters,
) ([]call, error) {
	base := call{
		Name: snake(operation.OperationID), Method: method,
		Doc: docstring(operation.Summary+".\n\n"+operation.Description, "    "),
	}
	if err := base.addArguments(operation, parameters); err != nil {
		return nil, err
	}
	var places []string
	for _, name := range placeholder.FindAllString(path, -1) {
		places = append(places, snake(name[1:len(name)-1]))
	}
	base.Path = strconv.Quote(path)
	if len(places) > 0 {
		base.Path = fmt.Sprintf("fill(%q, %s)", placeholder.ReplaceAllString(path, "{}"),
			strings.Join(places, ", "))
	}
	for _, status := range successes {
		if answer := operation.Responses.Status(status); answer != nil {
			return base.answers(status, answer.Value.Content)
		}
	}
	return nil, fmt.Errorf("has no answer of a success")
}

func (c *call) addArguments(operation *openapi3.Operation, parameters openapi3.Parameters) error {
	var first, named []string
	for _, ref := range parameters {
		p := ref.Value
		kind, err := typeOf(p.Schema)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		f := field{Name: snake(p.Name), JSON: p.Name}
		switch p.In {
		case openapi3.ParameterInQuery:
			c.Query = append(c.Query, f)
		case openapi3.ParameterInHeader:
			c.Headers = append(c.Headers, f)
		}
		if p.Required {
			first = append(first, f.Name+": "+kind)
		} else {
			named = append(named, f.Name+": "+optional(kind)+" = None")
		}
	}
	if operation.RequestBody != nil {
		content := operation.RequestBody.Value.Content
		if media := content.Get("application/json"); media != nil && isJSON(content) {
			kind, err := typeOf(media.Schema)
			if err != nil {
				return fmt.Errorf("body: %w", err)
			}
			c.Body = true
			if c.BodyOptional = !operation.RequestBody.Value.Required; c.BodyOptional {
				kind = optional(kind) + " = None"
			}
			first = append(first, "body: "+kind)
		} else { // its parts are made by the caller
			first, c.ContentType = append(first, "content_type: str"), "content_type"
		}
	}
	c.Arguments = first
	if len(named) > 0 {
		c.Arguments = append(append(first, "*"), named...)
	}
	return nil
}

// concrete makes the type of a value that is read from that of a value that is given.
var concrete = strings.NewReplacer("Sequence[", "list[", "Mapping[", "dict[")

func isJSON(content openapi3.Content) bool { return content["multipart/form-data"] == nil }

// answers makes the calls of an operation from the media types of its answer.
func (c call) answers(status int, content openapi3.Content) ([]call, error) {
	if status == http.StatusSwitchingProtocols {
		c.Kind, c.Returns = "Upgrade", "Upgrade"
		return []call{c}, nil
	}
	if len(content) == 0 {
		c.Kind, c.Answer, c.Returns = "Call", "type(None)", "Call[None]"
		return []call{c}, nil
	}
	var calls []call
	for _, name := range slices.Sorted(maps.Keys(content)) { // application comes before text
		next, media := c, content[name]
		suffix := ""
		switch {
		case name == "application/json":
			kind, err := typeOf(media.Schema)
			if err != nil {
				return nil, err
			}
			next.Kind, next.Answer = "Call", concrete.Replace(kind)
			next.Returns = "Call[" + next.Answer + "]"
			if kind == "None" {
				next.Answer = "type(None)" // None itself is no class
			}
		case name == "text/event-stream":
			kind, ok := media.Extensions["x-event-schema"].(string)
			if !ok {
				return nil, fmt.Errorf("an event stream without x-event-schema")
			}
			next.Kind, next.Answer, suffix = "EventStream", kind, "_stream"
			next.Returns = "EventStream[" + kind + "]"
		case name == "application/x-tar":
			next.Kind, next.Returns, next.Media, suffix = "ByteStream", "ByteStream", name, "_tar"
		default:
			next.Kind, next.Returns, suffix = "ByteStream", "ByteStream", "_text"
		}
		if len(calls) > 0 {
			next.Name += suffix
		}
		calls = append(calls, next)
	}
	return calls, nil
}
