// Package document reads the contracts with kin-openapi, for tests and for what is generated.
// Services go by package rules.
package document

import (
	"context"
	"fmt"

	"github.com/getkin/kin-openapi/openapi3"

	"sandbox.internal/openapi"
)

// LoadLifecycle parses the lifecycle contract and validates it, its examples
// included. Every call returns a document of its own, which the caller may change.
func LoadLifecycle() (*openapi3.T, error) { return load("lifecycle.yaml", openapi.Lifecycle()) }

// LoadExecd does for the API inside a sandbox what [LoadLifecycle] does for the
// lifecycle API.
func LoadExecd() (*openapi3.T, error) { return load("execd.yaml", openapi.Execd()) }

// LoadEgress does for the API of the egress sidecar what [LoadLifecycle] does for the
// lifecycle API.
func LoadEgress() (*openapi3.T, error) { return load("egress.yaml", openapi.Egress()) }

func load(name string, data []byte) (*openapi3.T, error) {
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("openapi/%s: parse: %w", name, err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation()); err != nil {
		return nil, fmt.Errorf("openapi/%s: validate: %w", name, err)
	}
	return doc, nil
}
