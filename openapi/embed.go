// Package openapi holds the contracts of both services: lifecycle.yaml, the API
// outside the sandboxes, and execd.yaml, the API inside each of them.
//
// The YAML is written by hand and embedded as it is. The generated code brings no
// copy of its own, because the generator renames operationIds in the copy, and
// everything keyed by operationId would silently miss.
package openapi

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/getkin/kin-openapi/openapi3"
)

//go:embed lifecycle.yaml
var lifecycleYAML string

//go:embed execd.yaml
var execdYAML string

//go:embed execd.slim.json
var execdSlim []byte

// Lifecycle returns the lifecycle contract as it was written. The caller owns the
// bytes.
func Lifecycle() []byte { return []byte(lifecycleYAML) }

// Execd returns the contract of the API inside a sandbox as it was written. The
// caller owns the bytes.
func Execd() []byte { return []byte(execdYAML) }

// LoadLifecycle parses the lifecycle contract and validates it, its examples
// included. Every call returns a document of its own, which the caller may change.
func LoadLifecycle() (*openapi3.T, error) { return load("lifecycle.yaml", Lifecycle()) }

// LoadExecd does for the API inside a sandbox what [LoadLifecycle] does for the
// lifecycle API.
func LoadExecd() (*openapi3.T, error) { return load("execd.yaml", Execd()) }

// LoadExecdSlim parses what requests to the API inside a sandbox must look like, and
// nothing else of its contract: a quarter of the work, done in every sandbox. Operations,
// parameters, request bodies and security are those of [LoadExecd].
func LoadExecdSlim() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(execdSlim)
	if err != nil {
		return nil, fmt.Errorf("openapi/execd.slim.json: parse: %w", err)
	}
	return doc, nil
}

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
