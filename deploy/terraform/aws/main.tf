# A coordinator, and a fleet of spot machines that join it, on AWS.
#
#     terraform apply -var deb=https://.../skerry_0.1.0_amd64.deb -var ssh_from='["203.0.113.7/32"]'
#     ssh admin@$(terraform output -raw address) sudo cat /var/lib/skerry-coordinator/user.token | skerry login -
#     export TF_VAR_token=$(skerry tokens --new worker --name fleet --expires 30d)
#     terraform apply -var deb=... -var ssh_from=... -var workers=4 -var worker_image=ami-...
#
# A machine that is taken back gets two minutes of notice, which workerd --spot auto sees;
# the group starts another one, which joins anew: no --uses for the token, and an end behind
# that of the fleet, as those that come later are refused, and cost all the same.  The state
# of Terraform has the token: keep it where secrets are kept.
terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "~> 6.0"
    }
  }
}

variable "deb" {
  type        = string
  description = "where the package is, https; for cards one that was built with CUDA (docs/deploy.md)"
}

variable "ssh_from" {
  type        = list(string)
  description = "addresses (CIDR) that may come by ssh; the ports 7710 and 7711 are open to all, and want tokens"
}

variable "key_name" {
  type        = string
  default     = null
  description = "the key pair for ssh"
}

variable "coordinator_type" {
  type    = string
  default = "t3.small"
}

variable "workers" {
  type        = number
  default     = 0
  description = "spot machines at a time"
}

variable "worker_types" {
  type        = list(string)
  default     = ["g6e.xlarge", "g6.xlarge", "g5.xlarge"]
  description = "any of these, the cheapest that is there"
}

variable "worker_image" {
  type        = string
  default     = null
  description = "an image of Debian 12 with NVIDIA's driver, libcublas, libcudnn9 and libnccl2; without one workers compute on CPUs"
}

variable "token" {
  type        = string
  default     = "none"
  sensitive   = true
  description = "what workers join with, needed where there are some"
}

data "aws_ami" "debian" {
  most_recent = true
  owners      = ["136693071363"] # Debian's

  filter {
    name   = "name"
    values = ["debian-12-amd64-*"]
  }
}

data "aws_vpc" "default" {
  default = true
}

data "aws_subnets" "default" {
  filter {
    name   = "vpc-id"
    values = [data.aws_vpc.default.id]
  }
}

resource "aws_security_group" "coordinator" {
  name_prefix = "skerry-coordinator-"

  ingress {
    description = "workers, people and browsers"
    from_port   = 7710
    to_port     = 7711
    protocol    = "tcp"
    cidr_blocks = ["0.0.0.0/0"]
  }

  ingress {
    description = "ssh"
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = var.ssh_from
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

# Workers listen nowhere.
resource "aws_security_group" "worker" {
  name_prefix = "skerry-worker-"

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

# Tokens carry the address, so it outlives the machine.
resource "aws_eip" "coordinator" {
  domain = "vpc"
}

resource "aws_eip_association" "coordinator" {
  allocation_id = aws_eip.coordinator.id
  instance_id   = aws_instance.coordinator.id
}

resource "aws_instance" "coordinator" {
  ami                    = data.aws_ami.debian.id
  instance_type          = var.coordinator_type
  key_name               = var.key_name
  vpc_security_group_ids = [aws_security_group.coordinator.id]
  user_data = replace(replace(file("${path.module}/../../cloud-init/coordinator.yaml"),
  "DEB", var.deb), "HOST", aws_eip.coordinator.public_ip)

  metadata_options {
    http_tokens = "required"
  }

  root_block_device {
    volume_size = 100
    encrypted   = true
  }

  # Jobs are on its disk: a newer image of Debian is no reason to make it anew.
  lifecycle {
    ignore_changes = [ami, user_data]
  }
}

resource "aws_launch_template" "worker" {
  name_prefix            = "skerry-worker-"
  image_id               = var.worker_image == null ? data.aws_ami.debian.id : var.worker_image
  vpc_security_group_ids = [aws_security_group.worker.id]
  user_data = base64encode(replace(replace(replace(file("${path.module}/../../cloud-init/worker.yaml"),
  "DEB", var.deb), "TOKEN", var.token), "WORKERD_FLAGS=\"\"", "WORKERD_FLAGS=\"--spot auto\""))

  metadata_options {
    http_tokens = "required"
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size = 120
      encrypted   = true
    }
  }

  lifecycle {
    precondition {
      condition     = var.workers == 0 || var.token != "none"
      error_message = "workers need a token: export TF_VAR_token=$(skerry tokens --new worker --expires 30d)"
    }
  }
}

resource "aws_autoscaling_group" "workers" {
  name_prefix         = "skerry-workers-"
  min_size            = 0
  max_size            = var.workers
  desired_capacity    = var.workers
  vpc_zone_identifier = data.aws_subnets.default.ids

  mixed_instances_policy {
    instances_distribution {
      on_demand_percentage_above_base_capacity = 0
      spot_allocation_strategy                 = "price-capacity-optimized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.worker.id
        version            = aws_launch_template.worker.latest_version
      }

      dynamic "override" {
        for_each = var.worker_types
        content {
          instance_type = override.value
        }
      }
    }
  }
}

output "address" {
  value = aws_eip.coordinator.public_ip
}
