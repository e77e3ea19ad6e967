// Package jsonschema takes the place of github.com/santhosh-tekuri/jsonschema, by a replace line in the go.mod of the
// project around it.
//
// kin-openapi links that library to validate OpenAPI 3.1. Our contracts are OpenAPI 3.0, for which kin-openapi has a
// validator of its own, so the library is never called. But it compiles every meta-schema there is when a program
// starts: 10 ms and 1.7 MB, paid by both of the processes that execd has in every sandbox.
//
// What is declared here is what kin-openapi names, and nothing more, so that a new version of it that needs more does
// not compile. A call panics: to validate less than was asked for, in silence, would be worse.
package jsonschema

const missing = "jsonschema: a contract that is not OpenAPI 3.0 is validated, but this build has no JSON Schema validator: " +
	"remove the replace line of github.com/santhosh-tekuri/jsonschema from go.mod"

// Draft is a version of JSON Schema.
type Draft struct{}

// Draft2020 is the version that OpenAPI 3.1 uses.
var Draft2020 = &Draft{}

// Compiler would compile schemas. There is no way to get one.
type Compiler struct{}

// NewCompiler panics.
func NewCompiler() *Compiler { panic(missing) }

// DefaultDraft panics.
func (*Compiler) DefaultDraft(*Draft) { panic(missing) }

// RegisterFormat panics.
func (*Compiler) RegisterFormat(*Format) { panic(missing) }

// AssertFormat panics.
func (*Compiler) AssertFormat() { panic(missing) }

// AddResource panics.
func (*Compiler) AddResource(string, any) error { panic(missing) }

// Compile panics.
func (*Compiler) Compile(string) (*Schema, error) { panic(missing) }

// Format is a named rule for values.
type Format struct {
	Name     string
	Validate func(any) error
}

// Schema would be a compiled schema.
type Schema struct{}

// Validate panics.
func (*Schema) Validate(any) error { panic(missing) }

// ErrorKind is what is wrong with a value.
type ErrorKind interface{ KeywordPath() []string }

// ValidationError says where a value breaks which rule.
type ValidationError struct {
	InstanceLocation []string
	ErrorKind        ErrorKind
	Causes           []*ValidationError
}

// Error panics.
func (*ValidationError) Error() string { panic(missing) }
