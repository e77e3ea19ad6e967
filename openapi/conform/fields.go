package conform

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/getkin/kin-openapi/openapi3"
)

// undeclared finds fields that a schema does not have. A contract lets answers have
// fields that a client does not have, so a validator passes them; a service, however, must
// not send what its own contract leaves out.
func undeclared(schema *openapi3.Schema, value any, at string) error {
	var errs []error
	switch value := value.(type) {
	case []any:
		if schema.Items == nil {
			break
		}
		for i, item := range value {
			errs = append(errs, undeclared(schema.Items.Value, item, fmt.Sprintf("%s/%d", at, i)))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			field := at + "/" + name
			extra := schema.AdditionalProperties
			switch declared := schema.Properties[name]; {
			case declared != nil:
				errs = append(errs, undeclared(declared.Value, value[name], field))
			case extra.Schema != nil:
				errs = append(errs, undeclared(extra.Schema.Value, value[name], field))
			case extra.Has == nil || !*extra.Has:
				errs = append(errs, fmt.Errorf("%s: the contract does not declare this field", field))
			}
		}
	}
	return errors.Join(errs...)
}
