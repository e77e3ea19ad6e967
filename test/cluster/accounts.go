package cluster

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Accounts are kubeconfig files of the service accounts that the chart deploy/helm/sandbox makes,
// with the rights that it gives them and no others: what the programs of an installation have.
type Accounts struct {
	Server, Controller, Gateway string
}

// accountsRelease is the release whose accounts Accounts makes.
const accountsRelease = "sandbox"

// grants matches the objects of the chart that accounts and their rights are made of.
var grants = regexp.MustCompile(`(?m)^kind: (ServiceAccount|Role|RoleBinding)$`)

// Accounts makes the chart's service accounts, roles and bindings in a namespace that exists, for
// sandboxes in that namespace, and writes their kubeconfig files into a folder. The API server's
// token for an account is valid for a day.
func (c *Cluster) Accounts(ctx context.Context, namespace, folder string) (Accounts, error) {
	chart := filepath.Join(c.scripts, "..", "..", "deploy", "helm", "sandbox")
	rendered, err := c.Helm(ctx, "template", accountsRelease, chart, "--namespace", namespace)
	if err != nil {
		return Accounts{}, err
	}
	var objects []string
	for _, object := range strings.Split(string(rendered), "\n---\n") {
		if grants.MatchString(object) {
			objects = append(objects, object)
		}
	}
	if _, err := c.Kubectl(ctx, strings.NewReader(strings.Join(objects, "\n---\n")), "apply", "-f",
		"-"); err != nil {
		return Accounts{}, err
	}
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return Accounts{}, err
	}
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return Accounts{}, err
	}
	administrator, err := clientcmd.NewDefaultClientConfig(*config, nil).ClientConfig()
	if err != nil {
		return Accounts{}, err
	}
	api, err := client.New(administrator, client.Options{})
	if err != nil {
		return Accounts{}, err
	}
	var made Accounts
	for component, path := range map[string]*string{"server": &made.Server, "controller": &made.Controller, "gateway": &made.Gateway} {
		name, day := accountsRelease+"-"+component, int64(24*60*60)
		token := authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &day}}
		account := corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if err := api.SubResource("token").Create(ctx, &account, &token); err != nil {
			return Accounts{}, fmt.Errorf("token of service account %s: %w", name, err)
		}
		its := clientcmdapi.NewConfig()
		its.CurrentContext = config.CurrentContext
		its.Contexts[its.CurrentContext] = &clientcmdapi.Context{
			Cluster: config.Contexts[config.CurrentContext].Cluster, AuthInfo: name, Namespace: namespace,
		}
		its.Clusters = config.Clusters
		its.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
		*path = filepath.Join(folder, namespace+"-"+component+".kubeconfig")
		if err := clientcmd.WriteToFile(*its, *path); err != nil {
			return Accounts{}, err
		}
	}
	return made, nil
}
