package v1alpha1

import (
	"encoding/json"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	kjson "sigs.k8s.io/json"
)

// UnmarshalJSON implements json.Unmarshaler. The definitions of our resources take any field of a
// pod's template, because its schema is larger than theirs; what the template has that no pod has
// would be dropped without a word, such as limits below a misspelt name.
func (s *BatchSandboxSpec) UnmarshalJSON(data []byte) error {
	type plain BatchSandboxSpec
	if err := utiljson.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	s.UnknownField = unknownField(data)
	return nil
}

// UnmarshalJSON implements json.Unmarshaler, as that of BatchSandboxSpec.
func (s *PoolSpec) UnmarshalJSON(data []byte) error {
	type plain PoolSpec
	if err := utiljson.Unmarshal(data, (*plain)(s)); err != nil {
		return err
	}
	s.UnknownField = unknownField(data)
	return nil
}

// unknownField returns what is wrong with the first field of the template in a spec that no pod
// has, empty when there is none.
func unknownField(spec []byte) string {
	var raw struct {
		Template json.RawMessage `json:"template"`
	}
	if kjson.UnmarshalCaseSensitivePreserveInts(spec, &raw) != nil || len(raw.Template) == 0 {
		return ""
	}
	if err := Strictly(raw.Template, new(corev1.PodTemplateSpec)); err != nil {
		return "template." + err.Error()
	}
	return ""
}

// fieldError is a field that breaks a rule.
type fieldError string

func (e fieldError) Error() string { return string(e) }

// Strictly decodes JSON, and returns an error that names the first field that the type does not
// have, or that is there twice.
func Strictly(data []byte, into any) error {
	strict, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		return err
	}
	if len(strict) == 0 {
		return nil
	}
	text := strict[0].Error()
	for _, problem := range []string{"unknown field", "duplicate field"} {
		if name, ok := strings.CutPrefix(text, problem+` "`); ok {
			return fieldError(strings.TrimSuffix(name, `"`) + ": " + problem)
		}
	}
	return strict[0]
}
