// Package rules says what the requests to a service must look like, and checks them. It holds what is left of a contract when everything
// that is for readers and clients is taken away: a service needs no more, and execd starts in every sandbox.
//
// The rules are made from the contracts by openapi/slim, which refuses a contract that says more about requests than is checked here.
package rules

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
)

// Contract is what requests to a service must look like.
type Contract struct {
	// KeyHeader is the header that carries the key; "" when there is none.
	KeyHeader  string       `json:"keyHeader,omitempty"`
	Operations []*Operation `json:"operations"`
}

// Operation is one operation of a contract.
type Operation struct {
	ID string `json:"id"`
	// Open operations need no key.
	Open bool `json:"open,omitempty"`
	// Streams is set when success is an event stream, which may never end.
	Streams    bool         `json:"streams,omitempty"`
	Parameters []*Parameter `json:"parameters,omitempty"`
	Body       *Body        `json:"body,omitempty"` // nil when none is read
}

// Where a parameter is.
const (
	InPath   = "path"
	InQuery  = "query"
	InHeader = "header"
)

// Parameter is a parameter of an operation. In the query its schema may be an array, whose items are given by repeating it.
type Parameter struct {
	Name     string  `json:"name"`
	In       string  `json:"in"`
	Required bool    `json:"required,omitempty"`
	Schema   *Schema `json:"schema"`
}

// Body is the body of a request.
type Body struct {
	Required bool `json:"required,omitempty"`
	// Media are the media types that are accepted, in lower case and sorted.
	Media []Media `json:"media"`
}

// Media is a media type of a body. The schema holds for JSON alone; of another body the handler checks the parts.
type Media struct {
	Type   string  `json:"type"`
	Schema *Schema `json:"schema,omitempty"` // nil: anything
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

//go:embed lifecycle.json
var lifecycle []byte

//go:embed execd.json
var execd []byte

//go:embed egress.json
var egress []byte

// Lifecycle returns the rules of the lifecycle API.
func Lifecycle() (*Contract, error) { return parse("lifecycle.json", lifecycle) }

// Execd returns the rules of the API inside a sandbox.
func Execd() (*Contract, error) { return parse("execd.json", execd) }

// Egress returns the rules of the API of the egress sidecar.
func Egress() (*Contract, error) { return parse("egress.json", egress) }

func parse(name string, data []byte) (*Contract, error) {
	contract := &Contract{}
	if err := json.Unmarshal(data, contract); err != nil {
		return nil, fmt.Errorf("openapi/rules/%s: %w", name, err)
	}
	return contract, nil
}
