package v1alpha1_test

import (
	"encoding/json"
	"testing"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TestUnknownFieldsAreFound: a field of a template that no pod has is named; all else is read as
// before.
func TestUnknownFieldsAreFound(t *testing.T) {
	for text, want := range map[string]string{
		`{"replicas": 3, "template": {"spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}}}`: "",
		`{"replicas": 3, "template": {"spec": {"containers": [{"name": "a", "resorces": {"limits": {}}}]}}}`:            "template.spec.containers[0].resorces: unknown field",
		`{"replicas": 3, "template": {"spec": {"containers": [{"name": "a", "Resources": {}}]}}}`:                       "template.spec.containers[0].Resources: unknown field",
		`{"replicas": 3, "template": {"spec": {"hostNetwrok": true}}}`:                                                  "template.spec.hostNetwrok: unknown field",
		`{"replicas": 3, "template": {"specs": {}}}`:                                                                    "template.specs: unknown field",
		`{"replicas": 3, "poolRef": "p"}`:                                                                               "",
	} {
		var spec v1alpha1.BatchSandboxSpec
		if err := json.Unmarshal([]byte(text), &spec); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if spec.UnknownField != want || spec.Replicas != 3 {
			t.Errorf("%s: got %q, %d replicas", text, spec.UnknownField, spec.Replicas)
		}
		var pool v1alpha1.PoolSpec
		if err := json.Unmarshal([]byte(text), &pool); err != nil || pool.UnknownField != want {
			t.Errorf("as a Pool's, %s: got %q, %v", text, pool.UnknownField, err)
		}
		// What is said about a field goes with the field.
		if err := json.Unmarshal([]byte(`{"replicas": 3, "template": {"spec": {}}}`), &spec); err != nil || spec.UnknownField != "" {
			t.Errorf("after a change: %q, %v", spec.UnknownField, err)
		}
	}
}
