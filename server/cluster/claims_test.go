package cluster_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sandbox.internal/server/cluster"
	"sandbox.internal/server/lifecycle"
)

func (s *space) claim(t *testing.T, name string, change func(*corev1.PersistentVolumeClaim)) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	change(claim)
	must(t, s.api.Create(t.Context(), claim))
}

// TestClaimsHaveOwners: a key that is no administrator's mounts the claims that name it and those
// that are shared, and sees no difference between the others and those that do not exist. The
// service needs no more than the chart's Role for that.
func TestClaimsHaveOwners(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	accounts, err := apiServer.Accounts(t.Context(), s.name, t.TempDir())
	must(t, err)
	c := s.replica(t, func(o *cluster.Options) { o.Kubeconfig = accounts.Server })
	const owner, shared = "sandbox.internal/owner", "sandbox.internal/shared"
	label := func(labels map[string]string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) { c.Labels = labels }
	}
	s.claim(t, "mine", label(map[string]string{owner: "alice"}))
	s.claim(t, "ours", label(map[string]string{owner: "bob", shared: "true"}))
	s.claim(t, "theirs", label(map[string]string{owner: "bob", shared: "false"}))
	s.claim(t, "unlabelled", label(nil))
	s.claim(t, "annotated", func(c *corev1.PersistentVolumeClaim) { c.Annotations = map[string]string{owner: "alice & co"} })
	s.claim(t, "both", func(c *corev1.PersistentVolumeClaim) {
		c.Labels, c.Annotations = map[string]string{owner: "bob"}, map[string]string{owner: "alice"}
	})
	create := func(claim, owner string, role lifecycle.Role) error {
		spec := sampleSpec()
		spec.Volumes = []lifecycle.Volume{{Name: "x", ClaimName: claim, MountPath: "/x", SubPath: "sub"}}
		_, err := c.Create(t.Context(), spec, lifecycle.CreateOptions{Owner: owner, Role: role})
		return err
	}
	for _, tc := range []struct{ claim, owner string }{{"mine", "alice"}, {"ours", "alice"}, {"annotated", "alice & co"}} {
		if err := create(tc.claim, tc.owner, lifecycle.RoleUser); err != nil {
			t.Errorf("%s, as %q: %v", tc.claim, tc.owner, err)
		}
	}
	for _, tc := range []struct{ claim, owner string }{
		{"mine", "bob"}, {"mine", ""}, {"theirs", "alice"}, {"unlabelled", "alice"}, {"unlabelled", ""}, {"annotated", "alice"}, {"both", "alice"},
		{"missing", "alice"},
	} {
		refuses(t, create(tc.claim, tc.owner, lifecycle.RoleUser), lifecycle.KindForbidden, "volumes[0].pvc.claimName", tc.claim, owner, shared)
	}
	for _, claim := range []string{"theirs", "unlabelled", "missing"} {
		if err := create(claim, "root", lifecycle.RoleAdmin); err != nil {
			t.Errorf("an administrator, %s: %v", claim, err)
		}
	}
}

// TestClaimsOfPools: a key that is no administrator's gets no pod of a Pool that mounts a claim
// which the key may not mount.
func TestClaimsOfPools(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	accounts, err := apiServer.Accounts(t.Context(), s.name, t.TempDir())
	must(t, err)
	c := s.replica(t, func(o *cluster.Options) { o.Kubeconfig = accounts.Server })
	const owner = "sandbox.internal/owner"
	s.claim(t, "alice-data", func(c *corev1.PersistentVolumeClaim) { c.Labels = map[string]string{owner: "alice"} })
	s.pool(t, "warm", func(template *corev1.PodTemplateSpec) {
		template.Spec.Volumes = []corev1.Volume{{Name: "scratch"}, {Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "alice-data"},
		}}}
	})
	create := func(owner string, role lifecycle.Role) error {
		_, err := c.Create(t.Context(), fromPool("warm"), lifecycle.CreateOptions{Owner: owner, Role: role})
		return err
	}
	refuses(t, create("bob", lifecycle.RoleUser), lifecycle.KindForbidden, "extensions.poolRef", `Pool "warm"`, owner)
	must(t, create("alice", lifecycle.RoleUser))
	must(t, create("root", lifecycle.RoleAdmin))
}
