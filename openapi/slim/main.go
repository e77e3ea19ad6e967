// Command slim writes the part of a contract that a running service needs: what its requests must look like. Descriptions, examples and
// the bodies of answers are for readers and clients.
//
//	slim -o execd.slim.json execd.yaml
//
// execd starts in every sandbox, and loading the whole contract would be most of its start.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

func main() {
	output := flag.String("o", "", "the file to write")
	flag.Parse()
	if *output == "" || flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: slim -o FILE CONTRACT")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *output); err != nil {
		fmt.Fprintf(os.Stderr, "slim: %v\n", err)
		os.Exit(1)
	}
}

func run(contract, output string) error {
	whole, err := openapi3.NewLoader().LoadFromFile(contract)
	if err != nil {
		return err
	}
	data, err := json.Marshal(whole)
	if err != nil {
		return err
	}
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		return err
	}
	document["info"] = map[string]any{"title": whole.Info.Title, "version": whole.Info.Version}
	components := document["components"].(map[string]any)
	delete(components, "responses")
	delete(components, "headers")
	strip(document, false)
	prune(document, components["schemas"].(map[string]any))
	data, err = json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(output, append(data, '\n'), 0o644)
}

// strip removes what validating a request does not need. In a map of names, such as properties, a key is no keyword.
func strip(node any, names bool) {
	switch node := node.(type) {
	case []any:
		for _, item := range node {
			strip(item, false)
		}
	case map[string]any:
		for key, value := range node {
			switch {
			case names:
				strip(value, false)
			case key == "responses":
				node[key] = streams(value.(map[string]any))
			case isForReaders(key):
				delete(node, key)
			default:
				strip(value, holdsNames(key))
			}
		}
	}
}

func isForReaders(key string) bool {
	switch key {
	case "description", "summary", "tags", "example", "examples", "externalDocs", "servers":
		return true
	}
	return strings.HasPrefix(key, "x-")
}

func holdsNames(key string) bool {
	switch key {
	case "paths", "properties", "schemas", "parameters", "content", "securitySchemes":
		return true
	}
	return false
}

// streams keeps of answers which of them are event streams: the guard treats those in a way of their own.
func streams(responses map[string]any) map[string]any {
	const eventStream = "text/event-stream"
	kept := make(map[string]any)
	for status, value := range responses {
		content, _ := value.(map[string]any)["content"].(map[string]any) // none in an answer without a body, or a shared error
		if _, ok := content[eventStream]; ok {
			kept[status] = map[string]any{"description": "", "content": map[string]any{eventStream: map[string]any{}}}
		}
	}
	return kept
}

// prune removes the schemas that nothing refers to any more.
func prune(document, schemas map[string]any) {
	for removed := true; removed; {
		removed = false
		text, err := json.Marshal(document)
		if err != nil {
			panic(err) // it came from JSON
		}
		for name := range schemas {
			if !strings.Contains(string(text), fmt.Sprintf(`"#/components/schemas/%s"`, name)) {
				delete(schemas, name)
				removed = true
			}
		}
	}
}
