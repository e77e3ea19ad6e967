package openapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// TestNoJSONSchemaIsLoud holds the module in nojsonschema to its word: who asks for what it leaves out is told, and
// does not get less validation than that.
func TestNoJSONSchemaIsLoud(t *testing.T) {
	t.Parallel()
	defer func() {
		if said := fmt.Sprint(recover()); !strings.Contains(said, "replace") || !strings.Contains(said, "go.mod") {
			t.Errorf("it says %q, want what to change", said)
		}
	}()
	err := openapi3.NewStringSchema().VisitJSON(7, openapi3.EnableJSONSchema2020())
	t.Errorf("a validator that is not there said %v", err)
}
