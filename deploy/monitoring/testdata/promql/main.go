// Command promql parses PromQL expressions: a JSON array of strings on standard input, an array of
// what they refer to on standard output. It is a module of its own, so that the project does not
// depend on what all of Prometheus depends on.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/prometheus/prometheus/promql/parser"
)

// expression is what an expression refers to.
type expression struct {
	Error     string     // of the parser; the rest is then empty
	Selectors []selector // in their order
	Labels    []string   // of by, without, on, ignoring
}

type selector struct {
	Metric   string
	Matchers []matcher
}

type matcher struct{ Name, Value string }

func main() {
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		log.Fatal(err)
	}
	expressions := make([]expression, len(texts))
	for i, text := range texts {
		expressions[i] = parse(text)
	}
	if err := json.NewEncoder(os.Stdout).Encode(expressions); err != nil {
		log.Fatal(err)
	}
}

func parse(text string) (result expression) {
	parsed, err := parser.ParseExpr(text)
	if err != nil {
		return expression{Error: err.Error()}
	}
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		switch node := node.(type) {
		case *parser.VectorSelector:
			found := selector{Metric: node.Name}
			for _, m := range node.LabelMatchers {
				found.Matchers = append(found.Matchers, matcher{m.Name, m.Value})
			}
			result.Selectors = append(result.Selectors, found)
		case *parser.AggregateExpr:
			result.Labels = append(result.Labels, node.Grouping...)
		case *parser.BinaryExpr:
			if node.VectorMatching != nil {
				result.Labels = append(result.Labels, node.VectorMatching.MatchingLabels...)
			}
		}
		return nil
	})
	return result
}
