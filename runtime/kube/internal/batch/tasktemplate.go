package batch

import (
	"encoding/json"
	"fmt"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"sandbox.internal/runtime/kube/v1alpha1"
)

// TaskTemplate returns the task of one sandbox of a batch that has tasks: the template with the
// sandbox's patch. It may be the batch's own, and must not be changed.
func TaskTemplate(b *v1alpha1.BatchSandbox, number int) (*v1alpha1.TaskTemplate, error) {
	if number >= len(b.Spec.ShardTaskPatches) {
		return b.Spec.TaskTemplate, nil
	}
	patch := b.Spec.ShardTaskPatches[number].Raw
	if len(patch) == 0 || string(patch) == "null" {
		return b.Spec.TaskTemplate, nil
	}
	original, err := json.Marshal(b.Spec.TaskTemplate)
	if err != nil {
		return nil, err
	}
	merged, err := jsonpatch.MergePatch(original, patch)
	template := new(v1alpha1.TaskTemplate)
	if err == nil {
		err = v1alpha1.Strictly(merged, template)
	}
	if err != nil {
		return nil, fmt.Errorf("spec.shardTaskPatches[%d]: %w", number, err)
	}
	return template, nil
}
