package docsui

import (
	"bytes"
	"fmt"
	"path"
	"slices"

	"go.yaml.in/yaml/v3"

	"sandbox.internal/openapi"
)

// contract is one of the two APIs, as the pages show it.
type contract struct {
	Name   string // of its file and its pages
	Title  string
	Source string // the path of the YAML as it was written
	Try    string // the path of the YAML that Swagger UI sends requests by
	reach  string // what differs in Try: members of the contract, as YAML
	text   []byte
}

// contracts in the order in which the pages name them; the first one is what /docs, /redoc and
// /openapi.yaml show.
func contracts() []contract {
	return []contract{
		{Name: "lifecycle", Title: "Lifecycle API", Source: "/openapi/lifecycle.yaml", Try: "/docs/lifecycle.yaml", text: openapi.Lifecycle()},
		{Name: "execd", Title: "Execution API", Source: "/openapi/execd.yaml", Try: "/docs/execd.yaml", reach: throughService, text: openapi.Execd()},
	}
}

func (p *Pages) addContracts() {
	for _, c := range contracts() {
		p.Add(c.Source, c.text)
		p.AddMade(c.Try, c.forTrying) // takes longer than all else that a start of the service computes
	}
	p.Add("/openapi.yaml", contracts()[0].text)
}

// throughService is how a page of the lifecycle service reaches the API inside a sandbox: through
// the service, because a browser may not send to the sandbox's own address from here, and often
// cannot reach it. The service wants its own key, and adds the daemon's token.
const throughService = `
servers:
  - url: /v1/sandboxes/{sandboxId}/proxy/44772
    description: A sandbox of this service.
    variables:
      sandboxId:
        default: SANDBOX-ID
        description: The id of a Running sandbox.
security:
  - apiKey: []
components:
  securitySchemes:
    apiKey:
      type: apiKey
      in: header
      name: SERVICE-API-KEY
      description: |-
        The API key of the lifecycle service, which passes requests on and adds the token of the sandbox. When the service has no key
        configured, the header is ignored.
`

// forTrying returns the contract as Swagger UI gets it. It says how to reach the API from here, and
// its parameters have no examples: Swagger UI would send them as if the user had typed them. The
// rest keeps its order and its words.
func (c contract) forTrying() ([]byte, error) {
	var file, changes yaml.Node
	if err := yaml.Unmarshal(c.text, &file); err != nil {
		return nil, err
	}
	document := file.Content[0]
	if err := yaml.Unmarshal([]byte(c.reach), &changes); err != nil {
		return nil, err
	}
	if len(changes.Content) > 0 {
		if err := overlay(document, changes.Content[0]); err != nil {
			return nil, err
		}
	}
	for _, place := range []*yaml.Node{member(document, "paths"), member(document, "components")} {
		clearParameters(document, place)
	}
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&file); err != nil {
		return nil, err
	}
	return out.Bytes(), encoder.Close()
}

// clearParameters removes the examples of all parameters below a node. Where a parameter shares its
// schema, it gets one of its own.
func clearParameters(document, node *yaml.Node) {
	if schema := member(node, "schema"); schema != nil && member(node, "in") != nil {
		if shared := member(schema, "$ref"); shared != nil {
			if named := member(member(member(document, "components"), "schemas"), path.Base(shared.Value)); named != nil {
				*schema = *named
				schema.Content = slices.Clone(named.Content)
			}
		}
		for i := 0; i+1 < len(schema.Content); i += 2 {
			if schema.Content[i].Value == "example" {
				schema.Content = slices.Delete(schema.Content, i, i+2)
				break
			}
		}
		return
	}
	for _, child := range node.Content {
		clearParameters(document, child)
	}
}

// overlay puts what changes holds in the place of what the document has there; components are
// merged.
func overlay(document, changes *yaml.Node) error {
	for i := 0; i < len(changes.Content); i += 2 {
		name, change := changes.Content[i].Value, changes.Content[i+1]
		old := member(document, name)
		switch {
		case old == nil:
			return fmt.Errorf("the contract has no %s", name)
		case name == "components":
			if err := overlay(old, change); err != nil {
				return err
			}
		default:
			*old = *change
		}
	}
	return nil
}

// member returns what an object holds under a name, nil if nothing.
func member(object *yaml.Node, name string) *yaml.Node {
	if object == nil || object.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(object.Content); i += 2 {
		if object.Content[i].Value == name {
			return object.Content[i+1]
		}
	}
	return nil
}
