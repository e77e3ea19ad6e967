// Package rules says what the requests to a service must look like, and checks them. It holds what
// is left of a contract when everything that is for readers and clients is taken away: a service
// needs no more, and execd starts in every sandbox.
//
// The rules are generated from the contracts by openapi/slim, which refuses a contract that says
// more about requests than is checked here. They are data of the program, so that a start has
// nothing to read.
package rules

import (
	"slices"
	"strings"
)

// Contract is what requests to a service must look like.
type Contract struct {
	// KeyHeader is the header that carries the key; "" when there is none.
	KeyHeader  string
	Operations []*Operation
}

// Operation is one operation of a contract.
type Operation struct {
	ID string
	// Open operations need no key.
	Open bool
	// Streams is set when success is an event stream, which may never end.
	Streams    bool
	Parameters []*Parameter
	Body       *Body // nil when none is read
}

// Where a parameter is.
const (
	InPath   = "path"
	InQuery  = "query"
	InHeader = "header"
)

// Parameter is a parameter of an operation. In the query its schema may be an array, whose items
// are given by repeating it.
type Parameter struct {
	Name     string
	In       string
	Required bool
	Schema   *Schema
}

// Body is the body of a request.
type Body struct {
	Required bool
	// Media are the media types that are accepted, in lower case and sorted.
	Media []Media
}

// Media is a media type of a body. The schema holds for JSON alone; of another body the handler
// checks the parts.
type Media struct {
	Type   string
	Schema *Schema // nil: anything
}

// UnknownQuery returns a name in the query of a request that is no parameter of the operation, the
// first in alphabetical order.
func (o *Operation) UnknownQuery(query map[string][]string) (name string, found bool) {
	for given := range query {
		known := slices.ContainsFunc(o.Parameters, func(p *Parameter) bool { return p.In == InQuery && p.Name == given })
		if !known && (!found || given < name) {
			name, found = given, true
		}
	}
	return name, found
}

// QueryNames names the parameters in the query, for messages.
func (o *Operation) QueryNames() string {
	var names []string
	for _, p := range o.Parameters {
		if p.In == InQuery {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Find returns what a Content-Type stands for, nil when it is not accepted.
func (b *Body) Find(contentType string) *Media {
	base, _, _ := strings.Cut(contentType, ";")
	base = strings.ToLower(strings.TrimSpace(base))
	for i := range b.Media {
		if b.Media[i].Type == base {
			return &b.Media[i]
		}
	}
	return nil
}

// Accepts names the media types, for messages.
func (b *Body) Accepts() string {
	names := make([]string, len(b.Media))
	for i, media := range b.Media {
		names[i] = media.Type
	}
	return strings.Join(names, " or ")
}

// Lifecycle returns the rules of the lifecycle API. They must not be changed, as those of the other
// services.
func Lifecycle() *Contract { return &lifecycle }

// Execd returns the rules of the API inside a sandbox.
func Execd() *Contract { return &execd }

// Egress returns the rules of the API of the egress sidecar.
func Egress() *Contract { return &egress }
