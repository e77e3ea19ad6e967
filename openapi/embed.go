// Package openapi holds the contracts: lifecycle.yaml, the API outside the sandboxes,
// execd.yaml, the API inside each of them, and egress.yaml, the API of the sidecar
// between a sandbox and the network.
//
// The YAML is written by hand and embedded as it is. The generated code brings no
// copy of its own, because the generator renames operationIds in the copy, and
// everything keyed by operationId would silently miss.
package openapi

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

//go:embed lifecycle.yaml
var lifecycleYAML string

//go:embed execd.yaml
var execdYAML string

//go:embed execd.slim.json
var execdSlim []byte

//go:embed egress.yaml
var egressYAML string

//go:embed egress.slim.json
var egressSlim []byte

// Lifecycle returns the lifecycle contract as it was written. The caller owns the
// bytes.
func Lifecycle() []byte { return []byte(lifecycleYAML) }

// Execd returns the contract of the API inside a sandbox as it was written. The
// caller owns the bytes.
func Execd() []byte { return []byte(execdYAML) }

// Egress returns the contract of the egress sidecar as it was written. The caller
// owns the bytes.
func Egress() []byte { return []byte(egressYAML) }

// LoadLifecycle parses the lifecycle contract and validates it, its examples
// included. Every call returns a document of its own, which the caller may change.
func LoadLifecycle() (*openapi3.T, error) { return load("lifecycle.yaml", Lifecycle()) }

// LoadExecd does for the API inside a sandbox what [LoadLifecycle] does for the
// lifecycle API.
func LoadExecd() (*openapi3.T, error) { return load("execd.yaml", Execd()) }

// LoadEgress does for the API of the egress sidecar what [LoadLifecycle] does for the
// lifecycle API.
func LoadEgress() (*openapi3.T, error) { return load("egress.yaml", Egress()) }

// LoadExecdSlim parses what requests to the API inside a sandbox must look like, and
// nothing else of its contract: a quarter of the work, done in every sandbox. Operations,
// parameters, request bodies and security are those of [LoadExecd].
func LoadExecdSlim() (*openapi3.T, error) { return loadSlim("execd.slim.json", execdSlim) }

// LoadEgressSlim is to [LoadEgress] what [LoadExecdSlim] is to [LoadExecd].
func LoadEgressSlim() (*openapi3.T, error) { return loadSlim("egress.slim.json", egressSlim) }

func loadSlim(name string, data []byte) (*openapi3.T, error) {
	doc, err := assemble(data)
	if err == nil {
		err = openapi3.NewLoader().ResolveRefsIn(doc, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("openapi/%s: parse: %w", name, err)
	}
	return doc, nil
}

// assemble puts a document together from its parts. Each type of kin-openapi parses all that is inside of it a second
// time, in search of extensions, so that an operation would be parsed once more for every level above it.
func assemble(data []byte) (*openapi3.T, error) {
	var parts struct {
		OpenAPI    string                                `json:"openapi"`
		Info       *openapi3.Info                        `json:"info"`
		Security   openapi3.SecurityRequirements         `json:"security"`
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Schemas         map[string]*openapi3.SchemaRef    `json:"schemas"`
			Parameters      map[string]*openapi3.ParameterRef `json:"parameters"`
			RequestBodies   openapi3.RequestBodies            `json:"requestBodies"`
			SecuritySchemes openapi3.SecuritySchemes          `json:"securitySchemes"`
		} `json:"components"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&parts); err != nil {
		return nil, err
	}
	paths := openapi3.NewPaths()
	for path, operations := range parts.Paths {
		item := &openapi3.PathItem{}
		for method, text := range operations {
			if method == "parameters" {
				if err := json.Unmarshal(text, &item.Parameters); err != nil {
					return nil, fmt.Errorf("%s: %w", path, err)
				}
				continue
			}
			operation := &openapi3.Operation{}
			if err := json.Unmarshal(text, operation); err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			item.SetOperation(strings.ToUpper(method), operation)
		}
		paths.Set(path, item)
	}
	return &openapi3.T{
		OpenAPI: parts.OpenAPI, Info: parts.Info, Security: parts.Security, Paths: paths,
		Components: &openapi3.Components{
			Schemas: parts.Components.Schemas, Parameters: parts.Components.Parameters,
			RequestBodies: parts.Components.RequestBodies, SecuritySchemes: parts.Components.SecuritySchemes,
		},
	}, nil
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
